//! The (token, row) pairs of a batch's tokens on a device.

use super::Features;
use super::driver::{Buffer, Queue};

/// The pairs of N tokens on a device, S slots a token: one for each column, and one for a sampled token outside of them.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub(super) queue: Queue,
    /// `[B, T, D]`, borrowed from the batch, whose life the supports' owner has too, or from `_held`.
    pub(super) hidden: Hidden,
    /// S.
    pub(super) stride: u32,
    /// N.
    pub(super) tokens: u32,
    /// V.
    pub(super) vocab_size: u32,
    /// Flat position of each token's feature, `[N]`.
    pub(super) features: Buffer<u32>,
    /// `[N]`.
    pub(super) squared_norms: Buffer<f64>,
    /// `[N]`.
    pub(super) signals: Buffer<f64>,
    /// `[N]`.
    pub(super) tails: Buffer<f64>,
    /// `[N, S]`, all four; a slot without a row has row `u32::MAX`.
    pub(super) rows: Buffer<u32>,
    pub(super) logits: Buffer<f32>,
    pub(super) pi: Buffer<f64>,
    pub(super) u: Buffer<f64>,
    /// Memory that `hidden` borrows from, where the batch does not hold it.
    pub(super) _held: Option<Buffer<f32>>,
    /// As [`Supports::spread`](crate::support::Supports::spread), `[N]`, in host memory.
    pub spreads: Vec<f64>,
}

/// Features as kernels take them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hidden {
    pub address: u64,
    /// D.
    pub width: u32,
    /// 1 where rows may be read 16 bytes at a time, else 0.
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
        // Rows of moments, which are floats, need a multiple of 4; eight columns of any type are 16 bytes or more.
        let vector = i32::from(width.is_multiple_of(8) && features.address().is_multiple_of(16));
        Self { address: features.address(), width: width as u32, vector, dtype }
    }

    /// The variant of a kernel for this type, of those for f32, f16 and bf16.
    pub fn of_dtype(&self, kernels: [&'static str; 3]) -> &'static str {
        kernels[self.dtype]
    }
}
