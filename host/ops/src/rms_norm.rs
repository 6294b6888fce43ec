//! RMSNorm with its backward pass.

use candle_core::{CustomOp2, CustomOp3, Result, Shape, Tensor, WithDType};

use super::bias::sum_rows;
use super::kernel::{Arg, custom_op, dot, layout_error, rows};
use super::number::{Number, Real};
use super::{add, by_kernel, generic, on_cpu, to_dtype};

/// `y_i = w_i x_i / sqrt(mean(x^2) + eps)` over the last axis, for `x` `[.., D]` and `weight`
/// `[D]`.
///
/// Source: `transformers.LlamaRMSNorm`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(x) {
        return Ok(super::cuda::rms_norm(x, None, weight, eps)?.1);
    }
    on_cpu([x, weight], |[x, weight]| {
        x.apply_op2_no_bwd(&weight, &RmsNorm { eps })
    })
}

/// `a + b`, and `rms_norm` of it.
pub fn add_rms_norm(a: &Tensor, b: &Tensor, weight: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(a) {
        return super::cuda::rms_norm(a, Some(b), weight, eps);
    }
    let sum = add(a, b)?;
    let normed = rms_norm(&sum, weight, eps)?;
    Ok((sum, normed))
}

/// Gradients of `rms_norm` by `x`, added to `plus`, and by `weight`, for the gradient `grad` of its
/// result.
pub fn rms_norm_backward(
    x: &Tensor,
    weight: &Tensor,
    grad: &Tensor,
    eps: f64,
    plus: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(x) && weight.elem_count() <= super::cuda::WIDEST && x.elem_count() > 0 {
        return super::cuda::rms_norm_backward(x, weight, grad, eps, plus);
    }
    let (dx, d_weight) = by_kernel(
        [x, weight, grad],
        || generic::rms_norm_backward(x, weight, grad, eps),
        |[x, weight, grad]| {
            let d_weight = sum_rows(&x.apply_op2_no_bwd(&grad, &ByWeight { eps })?)?;
            let dx = x.apply_op3_no_bwd(&weight, &grad, &ByInput { eps })?;
            Ok((dx, to_dtype(&d_weight, weight.dtype())?))
        },
    )?;
    match plus {
        Some(plus) => Ok((add(plus, &dx)?, d_weight)),
        None => Ok((dx, d_weight)),
    }
}

struct RmsNorm {
    eps: f64,
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn inverse_rms<T: Real>(x: &[T], eps: f64) -> T {
    let mean = dot(x, x) / T::from_f64(x.len() as f64);
    T::from_f64(1.0) / (mean + T::from_f64(eps)).sqrt()
}

fn check(op: &'static str, x: &Shape, weight: &Shape) -> Result<usize> {
    let x = x.dims();
    let weight = weight.dims();
    match (x.last(), weight) {
        (Some(width), [w]) if width == w => Ok(*w),
        _ => layout_error(op, format!("x {x:?} and weight {weight:?} do not fit")),
    }
}

impl RmsNorm {
    fn run<N: Number>(&self, x: Arg<'_, N>, weight: Arg<'_, N>) -> Result<(Vec<N>, Shape)> {
        let width = check(self.name(), x.shape, weight.shape)?;
        let weight = N::read(weight.numbers);
        let out = rows!(N; x.numbers.len(), width, |row, out| {
            let x = N::read(&x.numbers[row * width..][..width]);
            let inverse = inverse_rms(&x, self.eps);
            for ((out, x), w) in out.iter_mut().zip(&*x).zip(&*weight) {
                *out = *x * inverse * *w;
            }
        });
        Ok((out, x.shape.clone()))
    }
}

custom_op!(RmsNorm, "rms-norm", CustomOp2);

/// `r w_i g_i - r^3 x_i mean(w g x)`, with `r = 1 / rms(x)`.
struct ByInput {
    eps: f64,
}

impl ByInput {
    fn run<N: Number>(
        &self,
        x: Arg<'_, N>,
        weight: Arg<'_, N>,
        grad: Arg<'_, N>,
    ) -> Result<(Vec<N>, Shape)> {
        let width = check(self.name(), x.shape, weight.shape)?;
        let weight = N::read(weight.numbers);
        let out = rows!(N; x.numbers.len(), width, |row, dx| {
            let [x, g] = [x, grad].map(|arg| N::read(&arg.numbers[row * width..][..width]));
            let r = inverse_rms(&x, self.eps);
            for ((dx, g), w) in dx.iter_mut().zip(&*g).zip(&*weight) {
                *dx = *g * *w;
            }
            let shift = r * r * dot(dx, &x) / N::Real::from_f64(width as f64);
            for (dx, x) in dx.iter_mut().zip(&*x) {
                *dx = r * (*dx - *x * shift);
            }
        });
        Ok((out, x.shape.clone()))
    }
}

custom_op!(ByInput, "rms-norm-by-input", CustomOp3);

/// `g_i x_i r`, whose sum over rows is the gradient by the weight.
struct ByWeight {
    eps: f64,
}

impl ByWeight {
    fn run<N: Number>(&self, x: Arg<'_, N>, grad: Arg<'_, N>) -> Result<(Vec<N::Real>, Shape)> {
        let width = x.shape.dims().last().copied().unwrap_or(1);
        let terms = rows!(N::Real; x.numbers.len(), width, |row, terms| {
            let [x, g] = [x, grad].map(|arg| N::read(&arg.numbers[row * width..][..width]));
            let r = inverse_rms(&x, self.eps);
            for ((term, g), x) in terms.iter_mut().zip(&*g).zip(&*x) {
                *term = *g * *x * r;
            }
        });
        Ok((terms, x.shape.clone()))
    }
}

custom_op!(ByWeight, "rms-norm-by-weight", CustomOp2);
