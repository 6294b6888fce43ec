//! Sums of two tensors, on rayon's threads. candle's own elementwise operations spin in a separate
//! thread pool, which on a busy machine costs many times the addition.

use candle_core::{CustomOp2, DType, Result, Shape, Tensor};

use super::kernel::{Arg, custom_op, layout_error, rows, update2};
use super::number::Number;
use super::{by_kernel, fused};

/// Number of elements that one task handles.
const RUN: usize = 1024;

/// `a + b` for two tensors of one shape.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(a) {
        return super::cuda::add(a, b);
    }
    by_kernel([a, b], || a + b, |[a, b]| a.apply_op2_no_bwd(&b, &Add))
}

/// `sum + b`, in place where both are contiguous f32 on the CPU; `sum` must not be shared.
pub fn add_to(sum: Tensor, b: &Tensor) -> Result<Tensor> {
    if !is_updated_in_place(&sum) || !is_updated_in_place(b) {
        return add(&sum, b);
    }
    update2("add-to", &sum, b, |sum, b| *sum += b)?;
    Ok(sum)
}

fn is_updated_in_place(x: &Tensor) -> bool {
    fused(x) && x.dtype() == DType::F32 && x.is_contiguous()
}

struct Add;

impl Add {
    fn run<N: Number>(&self, a: Arg<'_, N>, b: Arg<'_, N>) -> Result<(Vec<N>, Shape)> {
        if a.shape != b.shape {
            return layout_error(
                self.name(),
                format!("{:?} and {:?} differ", a.shape, b.shape),
            );
        }
        let out = rows!(N; a.numbers.len(), RUN, |run, out| {
            let [a, b] = [a, b].map(|arg| N::read(&arg.numbers[run * RUN..][..out.len()]));
            for ((out, a), b) in out.iter_mut().zip(&*a).zip(&*b) {
                *out = *a + *b;
            }
        });
        Ok((out, a.shape.clone()))
    }
}

custom_op!(Add, "add", CustomOp2);
