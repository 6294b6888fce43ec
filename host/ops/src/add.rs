//! Sums of two tensors, on rayon's threads. candle's own elementwise operations spin in a separate thread pool, which
//! on a busy machine costs many times the addition.

use candle_core::{CpuStorage, CustomOp2, DType, InplaceOp2, Layout, Result, Shape, Tensor};

use super::kernel::{Real, custom_op, for_rows, layout_error, slice, update2, whole, whole_mut};
use super::{fused, is_rounded, rounded};

/// Number of elements that one task handles.
const RUN: usize = 256;

/// `a + b` for two tensors of one shape.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if is_rounded(a) {
        return rounded([a, b], |[a, b]| add(&a, &b));
    }
    if !fused(a) {
        return a + b;
    }
    a.contiguous()?.apply_op2_no_bwd(&b.contiguous()?, &Add)
}

/// `sum + b`, in place where both are contiguous f32 on the CPU; `sum` must not be shared.
pub fn add_to(sum: Tensor, b: &Tensor) -> Result<Tensor> {
    let in_place = |x: &Tensor| fused(x) && x.dtype() == DType::F32 && x.is_contiguous();
    if !in_place(&sum) || !in_place(b) {
        return add(&sum, b);
    }
    sum.inplace_op2(b, &AddTo)?;
    Ok(sum)
}

struct AddTo;

impl InplaceOp2 for AddTo {
    fn name(&self) -> &'static str {
        "add-to"
    }

    fn cpu_fwd(&self, sum: &mut CpuStorage, sl: &Layout, b: &CpuStorage, bl: &Layout) -> Result<()> {
        update2(whole_mut(sum, sl, bl, self.name())?, whole(b, bl, self.name())?, |sum, b| *sum += b);
        Ok(())
    }
}

struct Add;

impl Add {
    fn run<T: Real>(&self, a: (&CpuStorage, &Layout), b: (&CpuStorage, &Layout)) -> Result<(CpuStorage, Shape)> {
        let shape = a.1.shape().clone();
        if &shape != b.1.shape() {
            return layout_error(self.name(), format!("{shape:?} and {:?} differ", b.1.shape()));
        }
        let (a, b) = (slice::<T>(a.0, a.1, self.name())?, slice::<T>(b.0, b.1, self.name())?);
        let mut out = vec![T::from_f64(0.0); a.len()];
        for_rows(
            &mut out,
            RUN,
            #[inline(always)]
            |run, out| {
                let (a, b) = (&a[run * RUN..], &b[run * RUN..]);
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = *a + *b;
                }
            },
        );
        Ok((T::to_cpu_storage_owned(out), shape))
    }
}

custom_op!(Add, "add", CustomOp2);
