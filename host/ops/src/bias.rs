//! Addition of a bias row. candle's `broadcast_add` reduces its gradient over rows with an index computation per
//! element; here the reduction is a matrix product with a row of ones.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::kernel::{Real, custom_op, for_rows, layout_error, slice};
use super::{fused, is_rounded, rounded};

/// `x + bias` for `x` `[.., W]` and `bias` `[W]`.
pub fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if is_rounded(x) {
        return rounded([x, bias], |[x, bias]| add_bias(&x, &bias));
    }
    if !fused(x) {
        return x.broadcast_add(bias);
    }
    x.contiguous()?.apply_op2_no_bwd(&bias.contiguous()?, &AddBias)
}

/// Sum over all rows of `x` `[.., W]`, as `[W]`.
pub fn sum_rows(x: &Tensor) -> Result<Tensor> {
    if is_rounded(x) {
        return rounded([x], |[x]| sum_rows(&x));
    }
    let width = x.dim(candle_core::D::Minus1)?;
    let rows = x.elem_count() / width.max(1);
    let ones = Tensor::ones((1, rows), x.dtype(), x.device())?;
    ones.matmul(&x.reshape((rows, width))?)?.reshape(width)
}

struct AddBias;

impl AddBias {
    fn run<T: Real>(&self, x: (&CpuStorage, &Layout), b: (&CpuStorage, &Layout)) -> Result<(CpuStorage, Shape)> {
        let shape = x.1.shape().clone();
        let (x, b) = (slice::<T>(x.0, x.1, self.name())?, slice::<T>(b.0, b.1, self.name())?);
        if shape.dims().last() != Some(&b.len()) {
            return layout_error(self.name(), format!("x {shape:?} does not end in {}", b.len()));
        }
        let mut out = vec![T::from_f64(0.0); x.len()];
        for_rows(
            &mut out,
            b.len(),
            #[inline(always)]
            |row, out| {
                let x = &x[row * b.len()..][..b.len()];
                for ((out, x), b) in out.iter_mut().zip(x).zip(b) {
                    *out = *x + *b;
                }
            },
        );
        Ok((T::to_cpu_storage_owned(out), shape))
    }
}

custom_op!(AddBias, "add-bias", CustomOp2);
