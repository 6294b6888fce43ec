//! Products of f32 on a GPU: exact to 24 bits, or with operands that are rounded to TF32.
//!
//! TF32 has f32's exponent and 11 significant bits, so an operand changes by up to 2^-11 (4.9e-4)
//! of itself. Sums stay f32.

use candle_core::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};

use super::Dtype;

/// Turns TF32 on or off for all products of this process: as `chosen` says, else on for a model in
/// bf16, which has few products of f32 left.
pub fn choose(chosen: Option<bool>, dtype: Dtype) {
    set_gemm_reduced_precision_f32(chosen.unwrap_or(dtype == Dtype::Bf16));
}

/// True if products of f32 use TF32.
pub fn is_on() -> bool {
    gemm_reduced_precision_f32()
}
