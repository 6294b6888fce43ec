//! The gated activation of the feed-forward layer.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::kernel::{Real, custom_op, for_rows, layout_error, slice};
use super::{fused, generic, is_rounded, rounded, rounded_pair};

/// Number of elements that one kernel task handles.
const RUN: usize = 256;

/// `silu(gate) * up` with `silu(x) = x / (1 + e^-x)`, for two tensors of one shape.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if is_rounded(gate) {
        return rounded([gate, up], |[gate, up]| swiglu(&gate, &up));
    }
    if !fused(gate) {
        return generic::swiglu(gate, up);
    }
    gate.contiguous()?.apply_op2_no_bwd(&up.contiguous()?, &SwiGlu)
}

/// Gradients of `swiglu` by `gate` and by `up`, from the gradient `grad` of its result; all contiguous.
pub fn swiglu_backward(gate: &Tensor, up: &Tensor, grad: &Tensor) -> Result<(Tensor, Tensor)> {
    if is_rounded(gate) {
        return rounded_pair([gate, up, grad], |[gate, up, grad]| swiglu_backward(&gate, &up, &grad));
    }
    if !fused(gate) {
        return generic::swiglu_backward(gate, up, grad);
    }
    let both = gate.apply_op3_no_bwd(up, grad, &SwiGluBackward)?;
    Ok((both.get(0)?, both.get(1)?))
}

struct SwiGlu;
struct SwiGluBackward;

type Arg<'a> = (&'a CpuStorage, &'a Layout);

impl SwiGlu {
    fn run<T: Real>(&self, gate: Arg<'_>, up: Arg<'_>) -> Result<(CpuStorage, Shape)> {
        let shape = gate.1.shape().clone();
        if &shape != up.1.shape() {
            return layout_error(self.name(), format!("gate {shape:?} and up {:?} differ", up.1.shape()));
        }
        let (gate, up) = (slice::<T>(gate.0, gate.1, self.name())?, slice::<T>(up.0, up.1, self.name())?);
        let one = T::from_f64(1.0);
        let mut out = vec![T::from_f64(0.0); gate.len()];
        for_rows(
            &mut out,
            RUN,
            #[inline(always)]
            |run, out| {
                let (gate, up) = (&gate[run * RUN..], &up[run * RUN..]);
                for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                    *out = *gate * *up / (one + (-*gate).exp());
                }
            },
        );
        Ok((T::to_cpu_storage_owned(out), shape))
    }
}

custom_op!(SwiGlu, "swiglu", CustomOp2);

/// `[2, ..]`: `d up s (1 + gate (1 - s))` and `d gate s`, with `s = 1 / (1 + e^-gate)`.
impl SwiGluBackward {
    fn run<T: Real>(&self, gate: Arg<'_>, up: Arg<'_>, d: Arg<'_>) -> Result<(CpuStorage, Shape)> {
        let shape: Vec<usize> = [&[2], gate.1.dims()].concat();
        let (gate, up) = (slice::<T>(gate.0, gate.1, self.name())?, slice::<T>(up.0, up.1, self.name())?);
        let d = slice::<T>(d.0, d.1, self.name())?;
        let one = T::from_f64(1.0);
        let mut out = vec![T::from_f64(0.0); 2 * gate.len()];
        let (d_gate, d_up) = out.split_at_mut(gate.len());
        for_rows(
            d_gate,
            RUN,
            #[inline(always)]
            |run, out| {
                let (gate, up, d) = (&gate[run * RUN..], &up[run * RUN..], &d[run * RUN..]);
                for (((out, gate), up), d) in out.iter_mut().zip(gate).zip(up).zip(d) {
                    let s = one / (one + (-*gate).exp());
                    *out = *d * *up * s * (one + *gate * (one - s));
                }
            },
        );
        for_rows(
            d_up,
            RUN,
            #[inline(always)]
            |run, out| {
                let (gate, d) = (&gate[run * RUN..], &d[run * RUN..]);
                for ((out, gate), d) in out.iter_mut().zip(gate).zip(d) {
                    *out = *d * *gate / (one + (-*gate).exp());
                }
            },
        );
        Ok((T::to_cpu_storage_owned(out), shape.into()))
    }
}

custom_op!(SwiGluBackward, "swiglu-backward", CustomOp3);
