//! Addition of a bias row. candle's `broadcast_add` reduces its gradient over rows with an index
//! computation per element; here the reduction is a matrix product with a row of ones.

use candle_core::{CustomOp2, DType, Result, Shape, Tensor};

use super::kernel::{Arg, custom_op, layout_error, rows};
use super::number::Number;
use super::{by_kernel, to_dtype};

/// `x + bias` for `x` `[.., W]` and `bias` `[W]`.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(x) {
        return super::cuda::add_bias(x, bias);
    }
    by_kernel(
        [x, bias],
        || x.broadcast_add(bias),
        |[x, bias]| x.apply_op2_no_bwd(&bias, &AddBias),
    )
}

/// Sum over all rows of `x` `[.., W]`, as `[W]`.
pub fn sum_rows(x: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(x) {
        return super::cuda::sum_rows(x);
    }
    let sum = |x: &Tensor| {
        let width = x.dim(candle_core::D::Minus1)?;
        let rows = x.elem_count() / width.max(1);
        let ones = Tensor::ones((1, rows), x.dtype(), x.device())?;
        ones.matmul(&x.reshape((rows, width))?)?.reshape(width)
    };
    match x.dtype() {
        DType::BF16 if x.device().is_cpu() => {
            to_dtype(&sum(&to_dtype(x, DType::F32)?)?, DType::BF16)
        }
        _ => sum(x),
    }
}

struct AddBias;

impl AddBias {
    fn run<N: Number>(
        &self,
        (x, shape): Arg<'_, N>,
        (b, _): Arg<'_, N>,
    ) -> Result<(Vec<N>, Shape)> {
        if shape.dims().last() != Some(&b.len()) {
            return layout_error(
                self.name(),
                format!("x {shape:?} does not end in {}", b.len()),
            );
        }
        let (bias, width) = (N::read(b), b.len());
        let out = rows!(N; x.len(), width, |row, out| {
            let x = N::read(&x[row * width..][..width]);
            for ((out, x), b) in out.iter_mut().zip(&*x).zip(&*bias) {
                *out = *x + *b;
            }
        });
        Ok((out, shape.clone()))
    }
}

custom_op!(AddBias, "add-bias", CustomOp2);
