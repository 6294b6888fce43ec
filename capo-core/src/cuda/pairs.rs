//! The (token, row) pairs of a batch's tokens on a device.

use std::sync::{Arc, OnceLock};

use super::Features;
use super::driver::{Buffer, Queue};

/// The pairs of N tokens on a device, S slots a token: one for each column, and one for a sampled
/// token outside the columns.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub(super) queue: Queue,
    /// `[B, T, D]`: features, borrowed from `_held` or from the batch, which lives as long as the
    /// supports' owner.
    pub(super) hidden: Hidden,
    /// S: slots per token.
    pub(super) stride: u32,
    /// N: tokens.
    pub(super) tokens: u32,
    /// V: vocabulary entries.
    pub(super) vocab_size: u32,
    /// `[N]`: flat position of each token's feature.
    pub(super) features: Buffer<u32>,
    /// `[N]`: `‖h‖²` of each token's feature.
    pub(super) squared_norms: Buffer<f64>,
    /// `[N]`: factor of `u ⊗ h`.
    pub(super) signals: Buffer<f64>,
    /// `[N]`: probability outside the token's rows.
    pub(super) tails: Buffer<f64>,
    /// `[N, S]`, like the next three; a slot without a row has row `u32::MAX`.
    pub(super) rows: Buffer<u32>,
    pub(super) logits: Buffer<f32>,
    pub(super) pi: Buffer<f64>,
    pub(super) u: Buffer<f64>,
    /// Memory that `hidden` borrows from if the batch does not hold it.
    pub(super) _held: Option<Buffer<f32>>,
    /// `[N, S]`: indices of the slots by row, once they are sorted.
    pub(super) sorted: OnceLock<Arc<Buffer<u32>>>,
    /// `[N]`: as [`Supports::spread`](crate::support::Supports::spread), in host memory.
    pub spreads: Vec<f64>,
}

/// Features in the kernels' form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hidden {
    pub address: u64,
    /// D: width of a feature.
    pub width: u32,
    /// 1 if rows may be read 16 bytes at a time, else 0.
    pub vector: i32,
    dtype: usize,
}

impl Hidden {
    pub fn of(features: &Features, width: usize) -> Self {
        let dtype = match features {
            Features::F32(_) => 0,
            Features::F16(_) => 1,
            Features::Bf16(_) => 2,
        };
        // Rows of moments are floats and need a multiple of 4; eight columns of any type are at
        // least 16 bytes.
        let vector = i32::from(width.is_multiple_of(8) && features.address().is_multiple_of(16));
        Self {
            address: features.address(),
            width: width as u32,
            vector,
            dtype,
        }
    }

    /// The kernel for this type, among `kernels` for f32, f16 and bf16.
    pub fn of_dtype(&self, kernels: [&'static str; 3]) -> &'static str {
        kernels[self.dtype]
    }
}
