//! Gradients as sums over a batch's tokens, row by row: what ranks add up before each takes the step into its moments.

use crate::ranks::gave_up;
use crate::{Error, Ranks};

/// Gradients of R rows, in `f64`: 8 D bytes a row, twice that where what was rejected is remembered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowSums {
    /// Vocabulary rows, ascending.
    rows: Vec<u32>,
    /// D.
    pub width: usize,
    /// `[R, D]` of what was kept; behind it `[R, D]` of everything, where it is asked for.
    values: Vec<f64>,
}

impl RowSums {
    /// Zeros, for the rows that any rank has a gradient in: this one in its `own`, or none because of an error, which it has told the others
    /// then. `parts` are 2 where the gradient of everything is asked for, else 1.
    ///
    /// # Errors
    ///
    /// When the ranks cannot hear each other; `own`'s error, and on the other ranks one that names the rank.
    pub fn zero(
        own: Result<impl Iterator<Item = u32>, Error>,
        parts: usize,
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
        let mut rows: Vec<u32> = told.concat().into_iter().map(|row| row as u32).collect();
        rows.sort_unstable();
        rows.dedup();
        let values = vec![0.0; parts * rows.len() * width];
        Ok(Self { rows, width, values })
    }

    /// Adds up what all ranks have in them.
    ///
    /// # Errors
    ///
    /// When the ranks cannot hear each other.
    pub fn reduce(&mut self, ranks: &dyn Ranks) -> Result<(), Error> {
        // All ranks know the same rows: where there is none, none asks.
        if self.values.is_empty() { Ok(()) } else { ranks.sum(&mut self.values) }
    }

    /// The vocabulary rows, ascending.
    pub fn ids(&self) -> &[u32] {
        &self.rows
    }

    /// Each row's sums: of what was kept, and of everything.
    pub fn rows(&self) -> impl Iterator<Item = (&[f64], Option<&[f64]>)> {
        let (kept, everything) = self.values.split_at(self.rows.len() * self.width);
        let mut everything = everything.chunks(self.width);
        kept.chunks(self.width).map(move |kept| (kept, everything.next()))
    }

    /// The rows' sums for writing, with each row's id.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = (u32, SumsMut<'_>)> {
        let (kept, everything) = self.values.split_at_mut(self.rows.len() * self.width);
        let mut everything = everything.chunks_mut(self.width);
        let kept = self.rows.iter().copied().zip(kept.chunks_mut(self.width));
        kept.map(move |(row, kept)| (row, SumsMut { kept, everything: everything.next() }))
    }
}

/// A row's place in sums: of what was kept, and of everything where that is asked for.
pub(crate) struct SumsMut<'a> {
    pub kept: &'a mut [f64],
    pub everything: Option<&'a mut [f64]>,
}
