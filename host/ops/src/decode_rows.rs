//! The rows of a batch in a decoding step.

use std::sync::Arc;

/// The cache rows that are still generating, and their positions.
#[derive(Debug, Clone)]
pub struct DecodeRows {
    /// `[A]`: cache row of each active row.
    pub cache_rows: Arc<[usize]>,
    /// `[A]`: position of the first real token of each active row.
    pub starts: Arc<[usize]>,
    /// Position of the new token in the cache.
    pub index: usize,
}
