//! Updates of weights and moments, in place on the CPU. For other devices, `of` computes the new
//! value with candle's operations.

use candle_core::{Result, Tensor};

use super::kernel::{update2, update3};

const OP: &str = "optimizer";

/// `m = beta m + (1 - beta) scale g`.
pub struct Mean {
    /// Decay of the mean.
    pub beta: f64,
    /// Factor of the gradient.
    pub scale: f64,
}

impl Mean {
    /// The new mean.
    pub fn of(&self, m: &Tensor, grad: &Tensor) -> Result<Tensor> {
        m + (((grad * self.scale)? - m)? * (1.0 - self.beta))?
    }

    /// Replaces `m` by the new mean.
    pub fn update(&self, m: &Tensor, grad: &Tensor) -> Result<()> {
        let rest = (1.0 - self.beta) as f32;
        let scale = self.scale as f32;
        update2(OP, m, grad, |m, g| *m += rest * (scale * g - *m))
    }
}

/// `v = beta v + (1 - beta) (scale g)^2`; with a rejected gradient `r`,
/// `v = beta v + (1 - beta) ((scale g)^2 + (scale r)^2)`.
pub struct MeanSquare {
    /// Decay of the mean.
    pub beta: f64,
    /// Factor of the gradient.
    pub scale: f64,
}

impl MeanSquare {
    /// The new mean.
    pub fn of(&self, v: &Tensor, grad: &Tensor, rejected: Option<&Tensor>) -> Result<Tensor> {
        let mut squares = (grad * self.scale)?.sqr()?;
        if let Some(rejected) = rejected {
            squares = (squares + (rejected * self.scale)?.sqr()?)?;
        }
        (v * self.beta)? + (squares * (1.0 - self.beta))?
    }

    /// Replaces `v` by the new mean.
    pub fn update(&self, v: &Tensor, grad: &Tensor, rejected: Option<&Tensor>) -> Result<()> {
        let beta = self.beta as f32;
        let rest = (1.0 - self.beta) as f32;
        let scale = self.scale as f32;
        let Some(rejected) = rejected else {
            return update2(OP, v, grad, |v, g| {
                *v = beta * *v + rest * (scale * g) * (scale * g)
            });
        };
        update3(OP, v, grad, rejected, |v, g, r| {
            let g = scale * g;
            let r = scale * r;
            *v = beta * *v + rest * (g * g + r * r);
        })
    }
}

/// `w = decay_factor w - rate m / (sqrt(v) / root + eps)`.
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
    /// The new weight.
    pub fn of(&self, w: &Tensor, m: &Tensor, v: &Tensor) -> Result<Tensor> {
        let root = ((v.sqrt()? / self.root)? + self.eps)?;
        (w * self.decay_factor)? - ((m / root)? * self.rate)?
    }

    /// Replaces `w` by the new weight.
    pub fn update(&self, w: &Tensor, m: &Tensor, v: &Tensor) -> Result<()> {
        let factor = self.decay_factor as f32;
        let rate = self.rate as f32;
        let root = self.root as f32;
        let eps = self.eps as f32;
        update3(OP, w, m, v, |w, m, v| {
            *w = *w * factor - rate * (m / (v.sqrt() / root + eps))
        })
    }
}

/// `a = old a + new b`.
pub struct Blend {
    /// Factor of `a`.
    pub old: f64,
    /// Factor of `b`.
    pub new: f64,
}

impl Blend {
    /// The new `a`.
    pub fn of(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        (a * self.old)? + (b * self.new)?
    }

    /// Replaces `a` by the new one.
    pub fn update(&self, a: &Tensor, b: &Tensor) -> Result<()> {
        let old = self.old as f32;
        let new = self.new as f32;
        update2(OP, a, b, |a, b| *a = old * *a + new * b)
    }
}

/// `w = w0 + scale (w - w0)`, in place: the fraction `scale` of the change remains.
pub fn shorten(w: &Tensor, w0: &Tensor, scale: f64) -> Result<()> {
    let scale = scale as f32;
    update2(OP, w, w0, |w, w0| *w = w0 + scale * (*w - w0))
}
