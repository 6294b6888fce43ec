//! Addition of a bias row. candle's `broadcast_add` reduces its gradient over rows with an index
//! computation per element; here the reduction is a matrix product with a row of ones.

use candle_core::{CustomOp2, D, DType, Result, Shape, Tensor};

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
    if x.device().is_cpu() && x.dtype() == DType::BF16 {
        let sum = sum_by_product(&to_dtype(x, DType::F32)?)?;
        return to_dtype(&sum, DType::BF16);
    }
    sum_by_product(x)
}

/// The sum over rows, as the product of a row of ones with `x`.
fn sum_by_product(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let rows = x.elem_count() / width.max(1);
    let ones = Tensor::ones((1, rows), x.dtype(), x.device())?;
    ones.matmul(&x.reshape((rows, width))?)?.reshape(width)
}

struct AddBias;

impl AddBias {
    fn run<N: Number>(&self, x: Arg<'_, N>, bias: Arg<'_, N>) -> Result<(Vec<N>, Shape)> {
        let width = bias.numbers.len();
        if x.shape.dims().last() != Some(&width) {
            let shape = x.shape;
            return layout_error(self.name(), format!("x {shape:?} does not end in {width}"));
        }
        let bias = N::read(bias.numbers);
        let out = rows!(N; x.numbers.len(), width, |row, out| {
            let x = N::read(&x.numbers[row * width..][..width]);
            for ((out, x), b) in out.iter_mut().zip(&*x).zip(&*bias) {
                *out = *x + *b;
            }
        });
        Ok((out, x.shape.clone()))
    }
}

custom_op!(AddBias, "add-bias", CustomOp2);
