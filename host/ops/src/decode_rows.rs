//! Which rows of a batch a decoding step is about.

use std::sync::Arc;

/// Which rows of the cache are still generating, and where they stand.
#[derive(Debug, Clone)]
pub struct DecodeRows {
    /// Cache row of each active row, `[A]`.
    pub cache_rows: Arc<[usize]>,
    /// First real token of each active row, `[A]`.
    pub starts: Arc<[usize]>,
    /// Index in the cache of the new token.
    pub index: usize,
}
