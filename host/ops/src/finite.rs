//! The check that numbers are finite.

use candle_core::{CpuStorage, DType, Result, Storage, Tensor};
use half::bf16;
use rayon::prelude::*;

/// Number of values that one task looks at.
const RUN: usize = 1 << 16;

/// True if `x` has neither NaN nor infinity.
pub fn is_finite(x: &Tensor) -> Result<bool> {
    let (storage, layout) = x.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) => {
            Ok(all(&values[from..to], |value| {
                value.to_bits() & f32::INFINITY.to_bits() != f32::INFINITY.to_bits()
            }))
        }
        (Storage::Cpu(CpuStorage::BF16(values)), Some((from, to))) => {
            Ok(all(&values[from..to], |value| {
                value.to_bits() & bf16::INFINITY.to_bits() != bf16::INFINITY.to_bits()
            }))
        }
        _ if !x.dtype().is_float() => Ok(true),
        _ => {
            drop(storage);
            // The difference of a number and itself is 0, or NaN where it is not finite.
            Ok(x.sub(x)?
                .to_dtype(DType::F32)?
                .sum_all()?
                .to_scalar::<f32>()?
                == 0.0)
        }
    }
}

/// True if `test` holds for all values, on several threads if there are many.
fn all<T: Copy + Sync>(values: &[T], test: impl Fn(T) -> bool + Sync) -> bool {
    if values.len() <= RUN {
        all_of_run(values, &test)
    } else {
        values.par_chunks(RUN).all(|run| all_of_run(run, &test))
    }
}

/// True if `test` holds for all values. It looks at every value, so that the compiler can use
/// vectors.
fn all_of_run<T: Copy>(values: &[T], test: &impl Fn(T) -> bool) -> bool {
    values.iter().fold(true, |all, value| all & test(*value))
}
