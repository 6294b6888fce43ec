//! Adam's moments of the last layer, for the rows that a gradient has touched.

use std::collections::HashMap;

use crate::{Error, LastLayer};

/// First and second moments of R rows in contiguous `[R, D]` arrays, in the order in which the rows first appeared.
///
/// A row is written only when a gradient touches it; `row` reports how many steps it has missed, and readers apply
/// those decays, so that the numbers are those of dense Adam over the whole `[V, D]` matrix; or leave them out, where rows
/// that rest are frozen.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Moments {
    /// V and D of the batches seen; 0 before the first step.
    pub vocab_size: usize,
    pub width: usize,
    /// Steps taken.
    pub steps: u64,
    /// Vocabulary row of each slot, `[R]`.
    pub rows: Vec<u32>,
    /// `steps` as it stood after each slot was last written, `[R]`.
    pub written: Vec<u64>,
    /// `[R, D]`.
    pub exp_avg: Vec<f32>,
    /// `[R, D]`.
    pub exp_avg_sq: Vec<f32>,
    /// Where each row is: the inverse of `rows`.
    pub slots: HashMap<u32, usize>,
}

/// Moments of one row as last written, `[D]` each.
pub(crate) struct MomentRow<'a> {
    pub exp_avg: &'a [f32],
    pub exp_avg_sq: &'a [f32],
    /// Steps since, whose decay is still missing.
    pub age: u64,
}

impl Moments {
    /// Checks that a batch has the vocabulary and width of the state.
    pub fn check(&self, batch: &LastLayer) -> Result<(), Error> {
        self.check_dims(batch.vocab_size, batch.width, "the batch has")
    }

    /// As `check`, for the dimensions of whatever `who` names.
    pub fn check_dims(&self, vocab_size: usize, width: usize, who: &str) -> Result<(), Error> {
        if self.steps == 0 || (self.vocab_size, self.width) == (vocab_size, width) {
            return Ok(());
        }
        Err(Error::new(format!(
            "{who} vocabulary {vocab_size} and width {width}, the curvature state has {} and {} (use the model it was made with, or start without a state)",
            self.vocab_size, self.width
        )))
    }

    /// The row's moments, `None` while they are zero.
    pub fn row(&self, row: u32) -> Option<MomentRow<'_>> {
        let &slot = self.slots.get(&row)?;
        let span = slot * self.width..(slot + 1) * self.width;
        Some(MomentRow {
            exp_avg: &self.exp_avg[span.clone()],
            exp_avg_sq: &self.exp_avg_sq[span],
            age: self.steps - self.written[slot],
        })
    }

    /// The row's moments for writing, zero if new, and its age; marks it as written by the coming step.
    pub fn row_mut(&mut self, row: u32) -> (&mut [f32], &mut [f32], u64) {
        let slot = *self.slots.entry(row).or_insert(self.rows.len());
        if slot == self.rows.len() {
            self.rows.push(row);
            self.written.push(self.steps);
            self.exp_avg.resize((slot + 1) * self.width, 0.0);
            self.exp_avg_sq.resize((slot + 1) * self.width, 0.0);
        }
        let age = self.steps - self.written[slot];
        self.written[slot] = self.steps + 1;
        let span = slot * self.width..(slot + 1) * self.width;
        (&mut self.exp_avg[span.clone()], &mut self.exp_avg_sq[span], age)
    }
}
