//! Conversions between f32 and bf16 on the CPU: candle's own use one thread and convert one number at a time.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use half::bf16;
use rayon::prelude::*;

use super::fused;
use super::kernel::{dtype_error, whole};

/// Number of values that one task handles.
const RUN: usize = 1 << 14;

/// Bits of the nearest bf16, ties to even.
#[inline(always)]
pub(super) fn round_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 0x0040_0000;
    ((if value.is_nan() { quiet } else { rounded }) >> 16) as u16
}

/// The nearest bf16 of each number.
pub fn narrow(values: &[f32]) -> Vec<bf16> {
    convert(values, bf16::ZERO, |value| bf16::from_bits(round_to_bf16(value)))
}

/// The values as f32.
pub fn widen(values: &[bf16]) -> Vec<f32> {
    convert(values, 0.0, |value| f32::from_bits(u32::from(value.to_bits()) << 16))
}

fn convert<A: Copy + Sync, B: Copy + Send>(values: &[A], zero: B, f: impl Fn(A) -> B + Sync) -> Vec<B> {
    let mut out = vec![zero; values.len()];
    let run = |(out, values): (&mut [B], &[A])| out.iter_mut().zip(values).for_each(|(out, value)| *out = f(*value));
    if values.len() <= RUN {
        run((&mut out, values));
    } else {
        out.par_chunks_mut(RUN).zip(values.par_chunks(RUN)).for_each(run);
    }
    out
}

/// True if `x` is bf16 on the CPU. The fused kernels then compute in f32, and their results are rounded.
pub(super) fn is_rounded(x: &Tensor) -> bool {
    #[cfg(feature = "testing")]
    if super::testing::GENERIC.get() {
        return false;
    }
    x.device().is_cpu() && x.dtype() == DType::BF16
}

/// `x` in `dtype`.
pub fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let here = x.device().is_cpu() && x.is_contiguous();
    match (x.dtype(), dtype) {
        (DType::F32, DType::BF16) | (DType::BF16, DType::F32) if here => x.apply_op1_no_bwd(&Convert),
        _ => x.to_dtype(dtype),
    }
}

/// Copies of f32 tensors on a GPU in bf16: one tensor, and its parts in their order; `None` elsewhere.
pub fn narrowed(tensors: &[Tensor]) -> Result<Option<(Tensor, Vec<Tensor>)>> {
    #[cfg(feature = "cuda")]
    if tensors.first().is_some_and(|tensor| tensor.device().is_cuda()) {
        return super::cuda::narrowed(tensors).map(Some);
    }
    let _ = tensors;
    Ok(None)
}

/// Rounds f32 on the CPU to bf16 stochastically: each number goes up or down with probabilities that preserve its mean. `key` seeds the
/// choice.
pub fn round_by_chance(x: &Tensor, key: u32) -> Result<Tensor> {
    x.apply_op1_no_bwd(&ByChance { key })
}

struct ByChance {
    key: u32,
}

impl CustomOp1 for ByChance {
    fn name(&self) -> &'static str {
        "round-by-chance"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let values = whole(x, layout, self.name())?;
        let mut out = vec![bf16::ZERO; values.len()];
        out.par_chunks_mut(RUN).zip(values.par_chunks(RUN)).enumerate().for_each(|(run, (out, values))| {
            for (at, (out, value)) in out.iter_mut().zip(values).enumerate() {
                let chance = mixed((run * RUN + at) as u32 ^ self.key) & 0xffff;
                *out = bf16::from_bits((value.to_bits().wrapping_add(chance) >> 16) as u16);
            }
        });
        Ok((CpuStorage::BF16(out), layout.shape().clone()))
    }
}

/// A pseudo-random number, distinct for each `x`. Source: `lowbias32` of Ch. Wellons' "hash-prospector".
#[inline(always)]
fn mixed(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// The result of an operation: a tensor, or several.
pub(super) trait Rounded: Sized {
    /// The result, rounded to bf16.
    fn rounded(self) -> Result<Self>;
}

impl Rounded for Tensor {
    fn rounded(self) -> Result<Self> {
        to_dtype(&self, DType::BF16)
    }
}

impl Rounded for (Tensor, Tensor) {
    fn rounded(self) -> Result<Self> {
        Ok((self.0.rounded()?, self.1.rounded()?))
    }
}

impl Rounded for [Tensor; 3] {
    fn rounded(self) -> Result<Self> {
        let [a, b, c] = self;
        Ok([a.rounded()?, b.rounded()?, c.rounded()?])
    }
}

/// The result of `kernel` where it supports the first of `tensors`, else of `generic`. The kernel gets contiguous tensors. If the first is
/// bf16 on the CPU, the kernel gets all in f32, and its result is rounded.
pub(super) fn by_kernel<const N: usize, R: Rounded>(
    tensors: [&Tensor; N],
    generic: impl FnOnce() -> Result<R>,
    kernel: impl FnOnce([Tensor; N]) -> Result<R>,
) -> Result<R> {
    if !is_rounded(tensors[0]) && !fused(tensors[0]) {
        return generic();
    }
    on_cpu(tensors, kernel)
}

/// The result of `kernel` for tensors on the CPU, in the same way.
pub(super) fn on_cpu<const N: usize, R: Rounded>(
    tensors: [&Tensor; N],
    kernel: impl FnOnce([Tensor; N]) -> Result<R>,
) -> Result<R> {
    let rounds = tensors[0].dtype() == DType::BF16;
    let ready = |x: &&Tensor| if rounds { to_dtype(x, DType::F32)?.contiguous() } else { x.contiguous() };
    let ready: Vec<Tensor> = tensors.iter().map(ready).collect::<Result<_>>()?;
    let result = kernel(ready.try_into().expect("as many as there were"))?;
    if rounds { result.rounded() } else { Ok(result) }
}

/// Conversion in either direction.
struct Convert;

impl CustomOp1 for Convert {
    fn name(&self) -> &'static str {
        "convert"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let out = match x {
            CpuStorage::F32(values) => CpuStorage::BF16(narrow(&values[range])),
            CpuStorage::BF16(values) => CpuStorage::F32(widen(&values[range])),
            other => return dtype_error(other, self.name()),
        };
        Ok((out, layout.shape().clone()))
    }
}
