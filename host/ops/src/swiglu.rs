//! The gated activation of the feed-forward layer.

use candle_core::{CustomOp2, Result, Shape, Tensor};

use super::kernel::{Arg, Real, custom_op, for_rows, layout_error};
use super::{by_kernel, generic};

/// Number of elements that one kernel task handles.
const RUN: usize = 256;

/// `silu(gate) * up` with `silu(x) = x / (1 + e^-x)`, for two tensors of one shape.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(gate) {
        return super::cuda::swiglu(gate, up);
    }
    by_kernel([gate, up], || generic::swiglu(gate, up), |[gate, up]| gate.apply_op2_no_bwd(&up, &SwiGlu))
}

/// Gradients of `swiglu` by `gate` and by `up`, from the gradient `grad` of its result.
pub fn swiglu_backward(gate: &Tensor, up: &Tensor, grad: &Tensor) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(gate) {
        return super::cuda::swiglu_backward(gate, up, grad);
    }
    let kernel = |[gate, up, grad]: [Tensor; 3]| {
        let both = gate.apply_op3_no_bwd(&up, &grad, &SwiGluBackward)?;
        Ok((both.get(0)?, both.get(1)?))
    };
    by_kernel([gate, up, grad], || generic::swiglu_backward(gate, up, grad), kernel)
}

struct SwiGlu;
struct SwiGluBackward;

impl SwiGlu {
    fn run<T: Real>(&self, (gate, shape): Arg<'_, T>, (up, of_up): Arg<'_, T>) -> Result<(Vec<T>, Shape)> {
        if shape != of_up {
            return layout_error(self.name(), format!("gate {shape:?} and up {of_up:?} differ"));
        }
        let one = T::from_f64(1.0);
        let mut out = vec![T::from_f64(0.0); gate.len()];
        for_rows!(&mut out, RUN, |run, out| {
            let (gate, up) = (&gate[run * RUN..], &up[run * RUN..]);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = *gate * *up / (one + (-*gate).exp());
            }
        });
        Ok((out, shape.clone()))
    }
}

custom_op!(SwiGlu, "swiglu", CustomOp2);

/// `[2, ..]`: `d up s (1 + gate (1 - s))` and `d gate s`, with `s = 1 / (1 + e^-gate)`.
impl SwiGluBackward {
    fn run<T: Real>(
        &self,
        (gate, shape): Arg<'_, T>,
        (up, _): Arg<'_, T>,
        (d, _): Arg<'_, T>,
    ) -> Result<(Vec<T>, Shape)> {
        let one = T::from_f64(1.0);
        let mut out = vec![T::from_f64(0.0); 2 * gate.len()];
        let (d_gate, d_up) = out.split_at_mut(gate.len());
        for_rows!(d_gate, RUN, |run, out| {
            let (gate, up, d) = (&gate[run * RUN..], &up[run * RUN..], &d[run * RUN..]);
            for (((out, gate), up), d) in out.iter_mut().zip(gate).zip(up).zip(d) {
                let s = one / (one + (-*gate).exp());
                *out = *d * *up * s * (one + *gate * (one - s));
            }
        });
        for_rows!(d_up, RUN, |run, out| {
            let (gate, d) = (&gate[run * RUN..], &d[run * RUN..]);
            for ((out, gate), d) in out.iter_mut().zip(gate).zip(d) {
                *out = *d * *gate / (one + (-*gate).exp());
            }
        });
        Ok((out, [&[2], shape.dims()].concat().into()))
    }
}

custom_op!(SwiGluBackward, "swiglu-backward", CustomOp3);
