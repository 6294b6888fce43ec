//! Updates of weights and moments, in place on the CPU. For other devices, `of` computes the new value with candle's operations.

use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Tensor};

use super::kernel::{layout_error, update2, update3, whole, whole_mut};

const OP: &str = "optimizer";

/// `m = beta m + (1 - beta) scale g`, in place.
pub struct Mean {
    /// Decay of the mean.
    pub beta: f64,
    /// Factor of the gradient.
    pub scale: f64,
}

impl Mean {
    /// The new mean; the kernel below computes it in place.
    pub fn of(&self, m: &Tensor, grad: &Tensor) -> candle_core::Result<Tensor> {
        m + (((grad * self.scale)? - m)? * (1.0 - self.beta))?
    }
}

impl InplaceOp2 for Mean {
    fn name(&self) -> &'static str {
        "adamw-mean"
    }

    fn cpu_fwd(&self, m: &mut CpuStorage, ml: &Layout, g: &CpuStorage, gl: &Layout) -> candle_core::Result<()> {
        let (m, g) = (whole_mut(m, ml, gl, OP)?, whole(g, gl, OP)?);
        let (rest, scale) = ((1.0 - self.beta) as f32, self.scale as f32);
        update2(m, g, |m, g| *m += rest * (scale * g - *m));
        Ok(())
    }
}

/// `v = beta v + (1 - beta) (scale g)^2`, in place; with a rejected gradient `r`, `v = beta v + (1 - beta) ((scale g)^2 + (scale r)^2)`.
pub struct MeanSquare {
    /// Decay of the mean.
    pub beta: f64,
    /// Factor of the gradient.
    pub scale: f64,
}

impl MeanSquare {
    /// The new mean; the kernels below compute it in place.
    pub fn of(&self, v: &Tensor, grad: &Tensor, rejected: Option<&Tensor>) -> candle_core::Result<Tensor> {
        let square = |grad: &Tensor| (grad * self.scale)?.sqr();
        let squares = match rejected {
            None => square(grad)?,
            Some(rejected) => (square(grad)? + square(rejected)?)?,
        };
        (v * self.beta)? + (squares * (1.0 - self.beta))?
    }

    /// Beta, 1 - beta, and the scale.
    fn constants(&self) -> (f32, f32, f32) {
        (self.beta as f32, (1.0 - self.beta) as f32, self.scale as f32)
    }
}

impl InplaceOp2 for MeanSquare {
    fn name(&self) -> &'static str {
        "adamw-mean-square"
    }

    fn cpu_fwd(&self, v: &mut CpuStorage, vl: &Layout, g: &CpuStorage, gl: &Layout) -> candle_core::Result<()> {
        let (v, g) = (whole_mut(v, vl, gl, OP)?, whole(g, gl, OP)?);
        let (beta, rest, scale) = self.constants();
        update2(v, g, |v, g| *v = beta * *v + rest * (scale * g) * (scale * g));
        Ok(())
    }
}

impl InplaceOp3 for MeanSquare {
    fn name(&self) -> &'static str {
        "adamw-mean-squares"
    }

    fn cpu_fwd(
        &self,
        v: &mut CpuStorage,
        vl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
        r: &CpuStorage,
        rl: &Layout,
    ) -> candle_core::Result<()> {
        let (v, g, r) = (whole_mut(v, vl, gl, OP)?, whole(g, gl, OP)?, whole(r, rl, OP)?);
        let (beta, rest, scale) = self.constants();
        update3(v, g, r, |v, g, r| {
            let (g, r) = (scale * g, scale * r);
            *v = beta * *v + rest * (g * g + r * r);
        });
        Ok(())
    }
}

/// `w = decay_factor w - rate m / (sqrt(v) / root + eps)`, in place.
pub struct Update {
    /// Fraction of the weight that remains after decay.
    pub decay_factor: f64,
    /// Learning rate, divided by the bias correction of the mean.
    pub rate: f64,
    /// Square root of the bias correction of the mean square.
    pub root: f64,
    /// Term added to the root of the corrected mean square.
    pub eps: f64,
}

impl Update {
    /// The new weight; the kernel below computes it in place.
    pub fn of(&self, w: &Tensor, m: &Tensor, v: &Tensor) -> candle_core::Result<Tensor> {
        let root = ((v.sqrt()? / self.root)? + self.eps)?;
        (w * self.decay_factor)? - ((m / root)? * self.rate)?
    }
}

impl InplaceOp3 for Update {
    fn name(&self) -> &'static str {
        "adamw-update"
    }

    fn cpu_fwd(
        &self,
        w: &mut CpuStorage,
        wl: &Layout,
        m: &CpuStorage,
        ml: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> candle_core::Result<()> {
        let (w, m, v) = (whole_mut(w, wl, ml, OP)?, whole(m, ml, OP)?, whole(v, vl, OP)?);
        let (factor, rate, root, eps) = (self.decay_factor as f32, self.rate as f32, self.root as f32, self.eps as f32);
        update3(w, m, v, |w, m, v| *w = *w * factor - rate * (m / (v.sqrt() / root + eps)));
        Ok(())
    }
}

/// `a = old a + new b`, in place.
pub struct Blend {
    /// Factor of `a`.
    pub old: f64,
    /// Factor of `b`.
    pub new: f64,
}

impl Blend {
    /// The new `a`; the kernel below computes it in place.
    pub fn of(&self, a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
        (a * self.old)? + (b * self.new)?
    }
}

impl InplaceOp2 for Blend {
    fn name(&self) -> &'static str {
        "sgd-blend"
    }

    fn cpu_fwd(&self, a: &mut CpuStorage, al: &Layout, b: &CpuStorage, bl: &Layout) -> candle_core::Result<()> {
        let (a, b) = (whole_mut(a, al, bl, OP)?, whole(b, bl, OP)?);
        let (old, new) = (self.old as f32, self.new as f32);
        update2(a, b, |a, b| *a = old * *a + new * b);
        Ok(())
    }
}

/// `w = w0 + scale (w - w0)`, in place.
pub struct Shorten {
    /// Fraction of the change that remains.
    pub scale: f64,
}

impl InplaceOp2 for Shorten {
    fn name(&self) -> &'static str {
        "shorten"
    }

    fn cpu_fwd(&self, w: &mut CpuStorage, wl: &Layout, w0: &CpuStorage, l0: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(w), CpuStorage::F32(w0)) = (w, w0) else {
            return layout_error(OP, "weights must be f32".to_owned());
        };
        match (wl.contiguous_offsets(), l0.contiguous_offsets()) {
            (Some((from, to)), Some((from0, to0))) if to - from == to0 - from0 => {
                let scale = self.scale as f32;
                update2(&mut w[from..to], &w0[from0..to0], |w, w0| *w = w0 + scale * (*w - w0));
                Ok(())
            }
            _ => layout_error(OP, format!("{wl:?} and {l0:?} differ")),
        }
    }
}
