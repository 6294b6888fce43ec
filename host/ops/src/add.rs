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
    let in_place = |x: &Tensor| fused(x) && x.dtype() == DType::F32 && x.is_contiguous();
    if !in_place(&sum) || !in_place(b) {
        return add(&sum, b);
    }
    update2("add-to", &sum, b, |sum, b| *sum += b)?;
    Ok(sum)
}

struct Add;

impl Add {
    fn run<N: Number>(
        &self,
        (a, shape): Arg<'_, N>,
        (b, other): Arg<'_, N>,
    ) -> Result<(Vec<N>, Shape)> {
        if shape != other {
            return layout_error(self.name(), format!("{shape:?} and {other:?} differ"));
        }
        let out = rows!(N; a.len(), RUN, |run, out| {
            let [a, b] = [a, b].map(|numbers| N::read(&numbers[run * RUN..][..out.len()]));
            for ((out, a), b) in out.iter_mut().zip(&*a).zip(&*b) {
                *out = *a + *b;
            }
        });
        Ok((out, shape.clone()))
    }
}

custom_op!(Add, "add", CustomOp2);
