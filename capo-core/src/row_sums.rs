//! Gradients as sums over a batch's tokens, row by row: what ranks add up before each takes the step into its moments.

use crate::backend::update::SumsMut;
use crate::gradient::Gradients;
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
    /// Zeros, for the rows that any rank has a gradient in.
    ///
    /// # Errors
    ///
    /// When the ranks cannot hear each other.
    pub fn zero(gradients: &Gradients, width: usize, ranks: &dyn Ranks) -> Result<Self, Error> {
        let own: Vec<i64> = gradients.rows().map(i64::from).collect();
        let mut rows: Vec<u32> = ranks.gather(&own)?.concat().into_iter().map(|row| row as u32).collect();
        rows.sort_unstable();
        rows.dedup();
        let parts = if gradients.everything.is_some() { 2 } else { 1 };
        let values = vec![0.0; parts * rows.len() * width];
        Ok(Self { rows, width, values })
    }

    /// Adds up what all ranks have in them.
    ///
    /// # Errors
    ///
    /// When the ranks cannot hear each other.
    pub fn reduce(&mut self, ranks: &dyn Ranks) -> Result<(), Error> {
        ranks.sum(&mut self.values)
    }

    /// The vocabulary rows, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.rows.iter().copied()
    }

    /// Each row's sums: of what was kept, and of everything.
    pub fn rows(&self) -> impl Iterator<Item = (&[f64], Option<&[f64]>)> {
        let (kept, everything) = self.values.split_at(self.rows.len() * self.width);
        let mut everything = everything.chunks(self.width);
        kept.chunks(self.width).map(move |kept| (kept, everything.next()))
    }

    /// The same for writing, with the row's id.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = (u32, SumsMut<'_>)> {
        let (kept, everything) = self.values.split_at_mut(self.rows.len() * self.width);
        let mut everything = everything.chunks_mut(self.width);
        let kept = self.rows.iter().copied().zip(kept.chunks_mut(self.width));
        kept.map(move |(row, kept)| (row, SumsMut { kept, everything: everything.next() }))
    }
}
