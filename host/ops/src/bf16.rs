//! Conversions between f32 and bf16 on the CPU: candle's own use one thread and convert one number
//! at a time.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};
use half::bf16;
use rayon::prelude::*;

use super::fused;
use super::kernel::{dtype_error, rows, whole};

/// Number of values that one task handles.
const RUN: usize = 1 << 12;

/// The nearest bf16 of each number.
pub fn narrow(values: &[f32]) -> Vec<bf16> {
    rows!(bf16; values.len(), RUN, |run, out| {
        out.copy_from_slice(&values[run * RUN..][..out.len()])
    })
}

/// The values as f32.
pub fn widen(values: &[bf16]) -> Vec<f32> {
    rows!(f32; values.len(), RUN, |run, out| {
        for (out, value) in out.iter_mut().zip(&values[run * RUN..]) {
            *out = f32::from_bits(u32::from(value.to_bits()) << 16);
        }
    })
}

/// True if `x` is bf16 on the CPU. The kernels then compute in f32, and round their results.
pub(super) fn is_rounded(x: &Tensor) -> bool {
    #[cfg(feature = "testing")]
    if super::forced::GENERIC.get() {
        return false;
    }
    x.device().is_cpu() && x.dtype() == DType::BF16
}

/// `x` in `dtype`.
pub fn to_dtype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let here = x.device().is_cpu() && x.is_contiguous();
    match (x.dtype(), dtype) {
        (DType::F32, DType::BF16) | (DType::BF16, DType::F32) if here => {
            x.apply_op1_no_bwd(&Convert)
        }
        _ => x.to_dtype(dtype),
    }
}

/// Copies of f32 tensors on a GPU in bf16: one tensor, and its parts in their order; `None`
/// elsewhere.
pub fn narrowed(tensors: &[Tensor]) -> Result<Option<(Tensor, Vec<Tensor>)>> {
    #[cfg(feature = "cuda")]
    if tensors
        .first()
        .is_some_and(|tensor| tensor.device().is_cuda())
    {
        return super::cuda::narrowed(tensors).map(Some);
    }
    let _ = tensors;
    Ok(None)
}

/// Rounds f32 on the CPU to bf16 stochastically: each number goes up or down with probabilities
/// that preserve its mean. `key` seeds the choice.
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
        out.par_chunks_mut(RUN)
            .zip(values.par_chunks(RUN))
            .enumerate()
            .for_each(|(run, (out, values))| {
                for (at, (out, value)) in out.iter_mut().zip(values).enumerate() {
                    let chance = mixed((run * RUN + at) as u32 ^ self.key) & 0xffff;
                    *out = bf16::from_bits((value.to_bits().wrapping_add(chance) >> 16) as u16);
                }
            });
        Ok((CpuStorage::BF16(out), layout.shape().clone()))
    }
}

/// A pseudo-random number, distinct for each `x`. Source: `lowbias32` of Ch. Wellons'
/// "hash-prospector".
#[inline(always)]
fn mixed(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7feb_352d);
    let x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}

/// The result of `kernel` where it supports the first of `tensors`, else of `generic`. The kernel
/// gets contiguous tensors.
pub(super) fn by_kernel<const N: usize, R>(
    tensors: [&Tensor; N],
    generic: impl FnOnce() -> Result<R>,
    kernel: impl FnOnce([Tensor; N]) -> Result<R>,
) -> Result<R> {
    if !fused(tensors[0]) && !is_rounded(tensors[0]) {
        return generic();
    }
    on_cpu(tensors, kernel)
}

/// The result of `kernel` for contiguous copies of tensors.
pub(super) fn on_cpu<const N: usize, R>(
    tensors: [&Tensor; N],
    kernel: impl FnOnce([Tensor; N]) -> Result<R>,
) -> Result<R> {
    let ready: Vec<Tensor> = tensors
        .iter()
        .map(|x| x.contiguous())
        .collect::<Result<_>>()?;
    kernel(ready.try_into().expect("as many as there were"))
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
