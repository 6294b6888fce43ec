//! The processes that hold the completions of one step's batch between them.

use crate::Error;

/// R processes, the ranks, each with completions of its own of one step's batch, and what they tell each other.
///
/// All ranks make the same calls in the same order, and wait in each for all others.
pub trait Ranks {
    /// R, at least 1.
    fn size(&self) -> usize;

    /// Replaces each of `values` by its sum over all ranks: the same bits on all of them.
    ///
    /// # Errors
    ///
    /// When the ranks cannot hear each other.
    fn sum(&self, values: &mut [f64]) -> Result<(), Error>;

    /// The values of each rank, which may be of different numbers, in the order of ranks.
    ///
    /// # Errors
    ///
    /// When the ranks cannot hear each other.
    fn gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, Error>;
}

/// Of another rank's error.
pub(crate) fn gave_up(rank: usize) -> Error {
    Error::new(format!("rank {rank} could not take the step in (its own error says why)"))
}

/// The one process that holds the whole batch.
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
