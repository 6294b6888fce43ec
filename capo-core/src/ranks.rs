//! The processes that share the completions of one step's batch.

use crate::Error;

/// R processes, the ranks, each with its own completions of one step's batch, and the connection
/// between them.
///
/// All ranks make the same calls in the same order, and each call waits for all other ranks.
pub trait Ranks {
    /// R, at least 1.
    fn size(&self) -> usize;

    /// Replaces each of `values` by its sum over all ranks, bit for bit equal on all of them.
    ///
    /// # Errors
    ///
    /// When the ranks cannot reach each other.
    fn sum(&self, values: &mut [f64]) -> Result<(), Error>;

    /// Returns the values of each rank, ordered by rank. Ranks may pass different numbers of
    /// values.
    ///
    /// # Errors
    ///
    /// When the ranks cannot reach each other.
    fn gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, Error>;
}

/// The error on a rank that stops because of another rank's error.
pub(crate) fn gave_up(rank: usize) -> Error {
    Error::ranks(format!(
        "rank {rank} could not take the step in (its own error says why)"
    ))
}

/// A single process that holds the whole batch.
#[derive(Debug, Clone, Copy)]
pub struct OneRank;

impl Ranks for OneRank {
    fn size(&self) -> usize {
        1
    }

    fn sum(&self, _values: &mut [f64]) -> Result<(), Error> {
        Ok(())
    }

    fn gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, Error> {
        Ok(vec![values.to_vec()])
    }
}
