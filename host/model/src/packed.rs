//! The distinct tokens of a batch as rows of one matrix: each prompt once, followed by the
//! completions that continue it, without padding.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::config::Config;
use super::ops::{Packing, Rope, RopeTable};
use super::sequences::Sequences;

/// The tokens of a batch in the order in which they run through the model: all but the last of each
/// row.
pub(super) struct Packed {
    /// Token ids, `[N]`.
    pub(super) ids: Vec<u32>,
    /// Index of each token in its row, `[N]`.
    positions: Vec<usize>,
    packing: Packing,
    /// True if rows share an equal prompt.
    pub(super) shares: bool,
    rows: Vec<PackedRow>,
}

/// The packed tokens of a row of the batch.
#[derive(Clone, Default)]
struct PackedRow {
    prompt: Range<usize>,
    completion: Range<usize>,
}

/// Number of a row in its whole batch, and the number of its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberedRow {
    pub(super) number: u64,
    pub(super) tokens: usize,
}

/// Packed tokens on a device. Clones share them.
#[derive(Clone)]
pub(super) struct Tokens {
    /// Token ids, `[N]` u32.
    pub(super) ids: Tensor,
    pub(super) rope: Rope,
    pub(super) packing: Packing,
}

impl Packed {
    /// Tokens of `rows`. Rows share an equal prompt if `shares` is true.
    pub(super) fn new(rows: &Sequences, shares: bool) -> Self {
        let length = rows.prompt_len + rows.completion_len;
        let split = (0..rows.rows()).map(|row| {
            let ids = &rows.ids[row * length..][..length];
            let (prompt, completion) = ids.split_at(rows.prompt_len);
            let read = rows.tokens_of(row) - 1;
            (&prompt[rows.starts[row]..], &completion[..read])
        });
        Self::of(split, shares)
    }

    /// Prompts with the beginnings of their completions, which may be empty.
    pub(super) fn of<'a>(
        rows: impl IntoIterator<Item = (&'a [u32], &'a [u32])>,
        shares: bool,
    ) -> Self {
        let rows: Vec<(&[u32], &[u32])> = rows.into_iter().collect();
        let stems = stems(&rows, shares);
        let mut ids = Vec::new();
        let mut positions = Vec::new();
        let mut add = |tokens: &[u32], first_position: usize| {
            let from = ids.len();
            ids.extend_from_slice(tokens);
            positions.extend(first_position..first_position + tokens.len());
            from..ids.len()
        };
        let mut packed = vec![PackedRow::default(); rows.len()];
        for Stem { prompt, rows: own } in &stems {
            let context = add(prompt, 0);
            for &row in own {
                packed[row] = PackedRow {
                    prompt: context.clone(),
                    completion: add(rows[row].1, prompt.len()),
                };
            }
        }
        let lengths: Vec<(usize, Vec<usize>)> = stems
            .iter()
            .map(|stem| {
                let completions = stem.rows.iter().map(|row| rows[*row].1.len());
                (stem.prompt.len(), completions.collect())
            })
            .collect();
        let packing = Packing::new(
            lengths
                .iter()
                .map(|(prompt, completions)| (*prompt, completions.as_slice())),
        );
        Self {
            ids,
            positions,
            packing,
            shares,
            rows: packed,
        }
    }

    /// The tokens on `device`, with the rotation of the model `config`.
    pub(super) fn on(&self, config: &Config, device: &Device) -> Result<Tokens> {
        let positions = self.positions.iter().max().map_or(0, |last| last + 1);
        self.with_table(rope_table(config, positions), device)
    }

    /// The tokens on `device`, rotated by `table`.
    pub(super) fn with_table(&self, table: Arc<RopeTable>, device: &Device) -> Result<Tokens> {
        let ids = Tensor::new(self.ids.as_slice(), device)?;
        Ok(Tokens {
            ids,
            rope: Rope::at(table, &self.positions),
            packing: self.packing.clone(),
        })
    }

    /// Packed tokens of the prompt of `row`.
    pub(super) fn prompt(&self, row: usize) -> Range<usize> {
        self.rows[row].prompt.clone()
    }

    /// The packed token before each completion token, row by row.
    pub(super) fn before(&self) -> Vec<u32> {
        let mut before = Vec::new();
        for PackedRow { prompt, completion } in &self.rows {
            before.push(prompt.end as u32 - 1);
            before.extend(completion.clone().map(|token| token as u32));
        }
        before
    }

    /// The rows with these `numbers` in their whole batch.
    pub(super) fn numbered(&self, numbers: &[u64]) -> Arc<[NumberedRow]> {
        let rows = numbers.iter().zip(&self.rows);
        rows.map(|(&number, row)| NumberedRow {
            number,
            tokens: row.prompt.len() + row.completion.len(),
        })
        .collect()
    }

    /// The place of each token of `self` in `all`. `self` packs the rows `rows` of `all`.
    pub(super) fn places_in(&self, all: &Self, rows: &[usize]) -> Vec<u32> {
        let mut places = vec![0; self.ids.len()];
        for (own, row) in self.rows.iter().zip(rows) {
            let other = &all.rows[*row];
            for (place, token) in own.prompt.clone().zip(other.prompt.clone()) {
                places[place] = token as u32;
            }
            for (place, token) in own.completion.clone().zip(other.completion.clone()) {
                places[place] = token as u32;
            }
        }
        places
    }
}

/// A prompt, and the indices of the rows that continue it.
struct Stem<'a> {
    prompt: &'a [u32],
    rows: Vec<usize>,
}

/// The prompts in the order of their first rows. Rows share an equal prompt if `shares` is true.
fn stems<'a>(rows: &[(&'a [u32], &'a [u32])], shares: bool) -> Vec<Stem<'a>> {
    let mut places: HashMap<&[u32], usize> = HashMap::new();
    let mut stems: Vec<Stem<'_>> = Vec::new();
    for (row, (prompt, _)) in rows.iter().enumerate() {
        let next = stems.len();
        let place = if shares {
            *places.entry(prompt).or_insert(next)
        } else {
            next
        };
        if place == next {
            stems.push(Stem {
                prompt,
                rows: Vec::new(),
            });
        }
        stems[place].rows.push(row);
    }
    stems
}

/// Cosines and sines of the model `config` for `positions` positions.
pub(super) fn rope_table(config: &Config, positions: usize) -> Arc<RopeTable> {
    Arc::new(RopeTable::new(
        positions,
        &config.rotary.frequencies(config.head_dim()),
    ))
}
