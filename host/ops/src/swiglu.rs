//! The gated activation of the feed-forward layer.

use candle_core::{CustomOp2, Result, Shape, Tensor, WithDType};

use super::kernel::{Arg, custom_op, layout_error, rows};
use super::number::{Number, Real};
use super::on_cpu;

/// Number of elements that one kernel task handles.
const RUN: usize = 1024;

/// `silu(gate) * up` with `silu(x) = x / (1 + e^-x)`, for two tensors of one shape.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(gate) {
        return super::cuda::swiglu(gate, up);
    }
    on_cpu([gate, up], |[gate, up]| gate.apply_op2_no_bwd(&up, &SwiGlu))
}

/// Gradients of `swiglu` by `gate` and by `up`, from the gradient `grad` of its result.
pub fn swiglu_backward(gate: &Tensor, up: &Tensor, grad: &Tensor) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(gate) {
        return super::cuda::swiglu_backward(gate, up, grad);
    }
    on_cpu([gate, up, grad], |[gate, up, grad]| {
        Ok((
            gate.apply_op3_no_bwd(&up, &grad, &ByGate)?,
            gate.apply_op2_no_bwd(&grad, &ByUp)?,
        ))
    })
}

struct SwiGlu;

impl SwiGlu {
    fn run<N: Number>(&self, gate: Arg<'_, N>, up: Arg<'_, N>) -> Result<(Vec<N>, Shape)> {
        if gate.shape != up.shape {
            return layout_error(
                self.name(),
                format!("gate {:?} and up {:?} differ", gate.shape, up.shape),
            );
        }
        let one = N::Real::from_f64(1.0);
        let out = rows!(N; gate.numbers.len(), RUN, |run, out| {
            let [gate, up] = [gate, up].map(|arg| N::read(&arg.numbers[run * RUN..][..out.len()]));
            for ((out, gate), up) in out.iter_mut().zip(&*gate).zip(&*up) {
                *out = *gate * *up / (one + (-*gate).exp());
            }
        });
        Ok((out, gate.shape.clone()))
    }
}

custom_op!(SwiGlu, "swiglu", CustomOp2);

/// Gradient by the gate, `d up s (1 + gate (1 - s))` with `s = 1 / (1 + e^-gate)`, from the
/// gradient `d` of the result.
struct ByGate;

impl ByGate {
    fn run<N: Number>(
        &self,
        gate: Arg<'_, N>,
        up: Arg<'_, N>,
        grad: Arg<'_, N>,
    ) -> Result<(Vec<N>, Shape)> {
        let one = N::Real::from_f64(1.0);
        let out = rows!(N; gate.numbers.len(), RUN, |run, out| {
            let [gate, up, d] =
                [gate, up, grad].map(|arg| N::read(&arg.numbers[run * RUN..][..out.len()]));
            for (((out, gate), up), d) in out.iter_mut().zip(&*gate).zip(&*up).zip(&*d) {
                let s = one / (one + (-*gate).exp());
                *out = *d * *up * s * (one + *gate * (one - s));
            }
        });
        Ok((out, gate.shape.clone()))
    }
}

custom_op!(ByGate, "swiglu-by-gate", CustomOp3);

/// Gradient by `up`, `d gate s`, with `d` and `s` as in [`ByGate`].
struct ByUp;

impl ByUp {
    fn run<N: Number>(&self, gate: Arg<'_, N>, grad: Arg<'_, N>) -> Result<(Vec<N>, Shape)> {
        let one = N::Real::from_f64(1.0);
        let out = rows!(N; gate.numbers.len(), RUN, |run, out| {
            let [gate, d] = [gate, grad].map(|arg| N::read(&arg.numbers[run * RUN..][..out.len()]));
            for ((out, gate), d) in out.iter_mut().zip(&*gate).zip(&*d) {
                *out = *d * *gate / (one + (-*gate).exp());
            }
        });
        Ok((out, gate.shape.clone()))
    }
}

custom_op!(ByUp, "swiglu-by-up", CustomOp2);
