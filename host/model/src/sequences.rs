//! Prompts and their completions as rows of token ids.

use std::ops::Range;

use anyhow::{Result, bail, ensure};

/// A batch of prompts with their completions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequences {
    /// Token ids, `[B, P + T]` row-major: prompts padded on the left, completions padded on the
    /// right.
    pub ids: Vec<u32>,
    /// Index of the first real token of each row, `[B]`; less than `prompt_len`.
    pub starts: Vec<usize>,
    /// Padded length of the prompts, P, tokens.
    pub prompt_len: usize,
    /// Padded length of the completions, T, tokens.
    pub completion_len: usize,
    /// Number of tokens of each completion, `[B]`; at most `completion_len`.
    pub lengths: Vec<usize>,
    /// Number of each row in its whole batch, `[B]`. Random draws for a row use it, so they do not
    /// depend on how the batch is split.
    pub numbers: Vec<u64>,
}

impl Sequences {
    /// Row numbers of a whole batch of `rows` rows.
    pub fn numbered(rows: usize) -> Vec<u64> {
        (0..rows as u64).collect()
    }

    /// Number of rows, B.
    pub fn rows(&self) -> usize {
        self.starts.len()
    }

    /// Number of places that hold no token.
    pub fn padding(&self) -> usize {
        let unused = self.starts.iter().sum::<usize>() + self.rows() * self.completion_len;
        unused - self.lengths.iter().sum::<usize>()
    }

    /// Number of tokens of the completion of `row` that a pass predicts. For an empty completion it
    /// is 1: a padding token, which no loss reads.
    pub(super) fn tokens_of(&self, row: usize) -> usize {
        self.lengths[row].max(1)
    }

    /// Checks that the sizes are consistent, and that the ids are below `vocab_size`.
    pub(super) fn check(&self, vocab_size: usize) -> Result<()> {
        let rows = self.rows();
        let length = self.prompt_len + self.completion_len;
        ensure!(
            rows > 0 && self.prompt_len > 0 && self.completion_len > 0,
            "a batch of {rows} rows, {} prompt and {} completion tokens is empty \
             (give at least one of each)",
            self.prompt_len,
            self.completion_len
        );
        ensure!(
            self.ids.len() == rows * length,
            "{} ids do not fill {rows} rows of {length} tokens",
            self.ids.len()
        );
        ensure!(
            self.numbers.len() == rows,
            "{} numbers for {rows} rows",
            self.numbers.len()
        );
        ensure!(
            self.lengths.len() == rows,
            "{} lengths for {rows} rows",
            self.lengths.len()
        );
        if let Some(length) = self
            .lengths
            .iter()
            .find(|length| **length > self.completion_len)
        {
            bail!(
                "a completion of {length} tokens is longer than {} (give the longest length)",
                self.completion_len
            );
        }
        if let Some(start) = self.starts.iter().find(|start| **start >= self.prompt_len) {
            bail!(
                "a prompt starts at {start} in {} prompt tokens (give at least one prompt token)",
                self.prompt_len
            );
        }
        match self.ids.iter().find(|id| **id as usize >= vocab_size) {
            Some(id) => bail!(
                "token id {id} is outside the vocabulary of {vocab_size} \
                 (use the model's tokenizer)"
            ),
            None => Ok(()),
        }
    }

    /// A range of the rows.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        self.select(&rows.collect::<Vec<_>>())
    }

    /// The rows with the indices `rows`, in this order.
    pub fn select(&self, rows: &[usize]) -> Self {
        let length = self.prompt_len + self.completion_len;
        let ids = rows
            .iter()
            .flat_map(|row| self.ids[row * length..(row + 1) * length].iter().copied())
            .collect();
        Self {
            ids,
            starts: rows.iter().map(|&row| self.starts[row]).collect(),
            lengths: rows.iter().map(|&row| self.lengths[row]).collect(),
            numbers: rows.iter().map(|&row| self.numbers[row]).collect(),
            ..*self
        }
    }

    /// The completion tokens without padding, `[K]`, row by row.
    pub(super) fn targets(&self) -> impl Iterator<Item = u32> {
        let length = self.prompt_len + self.completion_len;
        (0..self.rows())
            .flat_map(move |row| &self.ids[row * length + self.prompt_len..][..self.tokens_of(row)])
            .copied()
    }

    /// The values of the completion tokens without padding, `[K]`, out of `values` `[B, T]`.
    pub(super) fn without_padding(&self, values: &[f32]) -> Vec<f32> {
        let mut kept = Vec::with_capacity(values.len());
        for (row, values) in values.chunks(self.completion_len).enumerate() {
            kept.extend_from_slice(&values[..self.tokens_of(row)]);
        }
        kept
    }

    /// The place of each of the `[B, T]` completion tokens among those without padding. Padding has
    /// the place of its row's last token.
    pub(super) fn places(&self) -> Vec<u32> {
        let mut places = Vec::with_capacity(self.rows() * self.completion_len);
        let mut first = 0;
        for row in 0..self.rows() {
            let tokens = self.tokens_of(row);
            let last = tokens - 1;
            places.extend((0..self.completion_len).map(|token| (first + token.min(last)) as u32));
            first += tokens;
        }
        places
    }

    /// The places of the completion tokens of `rows` among those of all rows without padding.
    pub(super) fn tokens_in(&self, rows: &[usize]) -> Vec<u32> {
        let places = self.places();
        rows.iter()
            .flat_map(|row| &places[row * self.completion_len..][..self.tokens_of(*row)])
            .copied()
            .collect()
    }
}
