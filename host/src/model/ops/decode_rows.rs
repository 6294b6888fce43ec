//! Which rows of a batch a decoding step is about.

use std::sync::Arc;

/// Widest head that the CUDA kernel takes.
pub(super) const MOST_WIDTH: usize = 256;

/// Which rows of the cache are still generating, and where they stand.
#[derive(Debug, Clone)]
pub(crate) struct DecodeRows {
    /// Cache row of each active row, `[A]`.
    pub(crate) cache_rows: Arc<[usize]>,
    /// First real token of each active row, `[A]`.
    pub(crate) starts: Arc<[usize]>,
    /// Index in the cache of the new token.
    pub(crate) index: usize,
}
