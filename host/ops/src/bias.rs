//! Addition of a bias row. candle's `broadcast_add` reduces its gradient over rows with an index computation per
//! element; here the reduction is a matrix product with a row of ones.

use candle_core::{CustomOp2, Result, Shape, Tensor};

use super::by_kernel;
use super::kernel::{Arg, Real, custom_op, for_rows, layout_error};

/// `x + bias` for `x` `[.., W]` and `bias` `[W]`.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(x) {
        return super::cuda::add_bias(x, bias);
    }
    by_kernel([x, bias], || x.broadcast_add(bias), |[x, bias]| x.apply_op2_no_bwd(&bias, &AddBias))
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
    by_kernel([x], || sum(x), |[x]| sum(&x))
}

struct AddBias;

impl AddBias {
    fn run<T: Real>(&self, (x, shape): Arg<'_, T>, (b, _): Arg<'_, T>) -> Result<(Vec<T>, Shape)> {
        if shape.dims().last() != Some(&b.len()) {
            return layout_error(self.name(), format!("x {shape:?} does not end in {}", b.len()));
        }
        let mut out = vec![T::from_f64(0.0); x.len()];
        for_rows!(&mut out, b.len(), |row, out| {
            let x = &x[row * b.len()..][..b.len()];
            for ((out, x), b) in out.iter_mut().zip(x).zip(b) {
                *out = *x + *b;
            }
        });
        Ok((out, shape.clone()))
    }
}

custom_op!(AddBias, "add-bias", CustomOp2);
