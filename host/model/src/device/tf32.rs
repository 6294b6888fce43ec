//! Products of f32 on a GPU: exact to 24 bits, or with operands that are rounded to TF32.
//!
//! TF32 has f32's exponent and 11 significant bits, so an operand changes by up to 2^-11 (4.9e-4) of itself. Sums stay f32.

use std::sync::{Mutex, PoisonError};

static CHOSEN: Mutex<Option<bool>> = Mutex::new(None);

/// Sets `train.tf32` for the devices that this process opens from now on.
pub fn choose(chosen: Option<bool>) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = chosen;
}

/// True if products of f32 are to use TF32: as chosen, else where the model is computed in bf16, so that few are left.
pub fn is_on(in_bf16: bool) -> bool {
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(in_bf16)
}
