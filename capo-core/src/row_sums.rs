//! Gradients as sums over a batch's tokens, by row. Ranks add these sums before each updates its
//! moments.

use crate::ranks::gave_up;
use crate::{Error, Ranks};

/// Gradients of R rows, in `f64`: 8 D bytes a row, twice that if rejected tokens are included.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowSums {
    /// Vocabulary rows, ascending.
    pub ids: Vec<u32>,
    /// D: width of a row.
    pub width: usize,
    /// `[R, D]` of kept tokens; if requested, followed by `[R, D]` of all tokens.
    values: Vec<f64>,
}

impl RowSums {
    /// Zeros for the rows in which any rank has a gradient. `own` holds this rank's rows, or an
    /// error that it has already sent to the others. `everything` requests the gradient of all
    /// tokens too.
    ///
    /// # Errors
    ///
    /// When the ranks cannot reach each other; `own`'s error, and on the other ranks an error that
    /// names the failed rank.
    pub fn zero(
        own: Result<impl Iterator<Item = u32>, Error>,
        everything: bool,
        width: usize,
        ranks: &dyn Ranks,
    ) -> Result<Self, Error> {
        const FAILED: i64 = -1;
        let (own, error) = match own {
            Ok(own) => (own.map(i64::from).collect(), None),
            Err(error) => (vec![FAILED], Some(error)),
        };
        let told = ranks.gather(&own);
        error.map_or(Ok(()), Err)?;
        let told = told?;
        if let Some(rank) = told.iter().position(|rows| rows.first() == Some(&FAILED)) {
            return Err(gave_up(rank));
        }
        let mut ids: Vec<u32> = told.concat().into_iter().map(|row| row as u32).collect();
        ids.sort_unstable();
        ids.dedup();
        let values = vec![0.0; (1 + usize::from(everything)) * ids.len() * width];
        Ok(Self { ids, width, values })
    }

    /// Adds the sums of all ranks.
    ///
    /// # Errors
    ///
    /// When the ranks cannot reach each other.
    pub fn reduce(&mut self, ranks: &dyn Ranks) -> Result<(), Error> {
        // All ranks know the same rows, so they skip the call together if there are none.
        if self.values.is_empty() {
            Ok(())
        } else {
            ranks.sum(&mut self.values)
        }
    }

    /// Each row's sums: of kept tokens, and of all tokens.
    pub fn rows(&self) -> impl Iterator<Item = (&[f64], Option<&[f64]>)> {
        let (kept, everything) = self.values.split_at(self.ids.len() * self.width);
        let mut everything = everything.chunks(self.width);
        kept.chunks(self.width)
            .map(move |kept| (kept, everything.next()))
    }

    /// The rows' sums, writable, with each row's id.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = (u32, SumsMut<'_>)> {
        let (kept, everything) = self.values.split_at_mut(self.ids.len() * self.width);
        let mut everything = everything.chunks_mut(self.width);
        let kept = self.ids.iter().copied().zip(kept.chunks_mut(self.width));
        kept.map(move |(row, kept)| {
            (
                row,
                SumsMut {
                    kept,
                    everything: everything.next(),
                },
            )
        })
    }
}

/// A row's sums, writable: of kept tokens, and of all tokens if requested.
pub(crate) struct SumsMut<'a> {
    pub kept: &'a mut [f64],
    pub everything: Option<&'a mut [f64]>,
}
