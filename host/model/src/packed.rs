//! The distinct tokens of a batch as rows of one matrix: a prompt once, behind it the completions
//! that continue it, and no padding.

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
    /// True if equal prompts are one.
    pub(super) shares: bool,
    /// Packed tokens of each row of the batch: those of its prompt, and those of its completion.
    rows: Vec<[Range<usize>; 2]>,
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
    /// Tokens of `rows`. Equal prompts are one if `shares` is true.
    pub(super) fn new(rows: &Sequences, shares: bool) -> Self {
        let length = rows.prompt_len + rows.completion_len;
        let row = |row: usize| {
            let (ids, completion) = rows.ids[row * length..][..length].split_at(rows.prompt_len);
            (
                &ids[rows.starts[row]..],
                &completion[..rows.tokens_of(row) - 1],
            )
        };
        Self::of((0..rows.rows()).map(row), shares)
    }

    /// Prompts with the beginnings of their completions, which may be empty.
    pub(super) fn of<'a>(
        rows: impl IntoIterator<Item = (&'a [u32], &'a [u32])>,
        shares: bool,
    ) -> Self {
        let mut places: HashMap<&[u32], usize> = HashMap::new();
        let mut stems: Vec<(&[u32], Vec<usize>)> = Vec::new();
        let rows: Vec<(&[u32], &[u32])> = rows.into_iter().collect();
        for (row, (prompt, _)) in rows.iter().enumerate() {
            let next = stems.len();
            let place = if shares {
                *places.entry(prompt).or_insert(next)
            } else {
                next
            };
            if place == next {
                stems.push((prompt, Vec::new()));
            }
            stems[place].1.push(row);
        }
        let (mut ids, mut positions) = (Vec::new(), Vec::new());
        let mut add = |tokens: &[u32], first: usize| {
            let from = ids.len();
            ids.extend_from_slice(tokens);
            positions.extend(first..first + tokens.len());
            from..ids.len()
        };
        let mut ranges = vec![[0..0, 0..0]; rows.len()];
        let mut lengths = Vec::new();
        for (prompt, own) in &stems {
            let context = add(prompt, 0);
            for row in own {
                ranges[*row] = [context.clone(), add(rows[*row].1, prompt.len())];
            }
            lengths.push((
                prompt.len(),
                own.iter().map(|row| rows[*row].1.len()).collect::<Vec<_>>(),
            ));
        }
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
            rows: ranges,
        }
    }

    /// The tokens on `device`, with the rotation of the model `config`.
    pub(super) fn on(&self, config: &Config, device: &Device) -> Result<Tokens> {
        let table = rope_table(
            config,
            self.positions.iter().max().map_or(0, |last| last + 1),
        );
        self.with_table(table, device)
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
        self.rows[row][0].clone()
    }

    /// The packed token before each completion token, row by row.
    pub(super) fn before(&self) -> Vec<u32> {
        let row =
            |[prompt, own]: &[Range<usize>; 2]| std::iter::once(prompt.end - 1).chain(own.clone());
        self.rows
            .iter()
            .flat_map(row)
            .map(|token| token as u32)
            .collect()
    }

    /// The `numbers` of the rows, each with the number of its tokens.
    pub(super) fn numbered(&self, numbers: &[u64]) -> Arc<[(u64, usize)]> {
        let tokens = self
            .rows
            .iter()
            .map(|[prompt, own]| prompt.len() + own.len());
        numbers.iter().copied().zip(tokens).collect()
    }

    /// Of each token of these `rows` of `all`, as which `self` packs them, its place in `all`.
    pub(super) fn places_in(&self, all: &Self, rows: &[usize]) -> Vec<u32> {
        let mut places = vec![0; self.ids.len()];
        for (own, row) in self.rows.iter().zip(rows) {
            for (own, other) in own.iter().zip(&all.rows[*row]) {
                own.clone()
                    .zip(other.clone())
                    .for_each(|(own, other)| places[own] = other as u32);
            }
        }
        places
    }
}

/// Cosines and sines of the model `config` for `positions` positions.
pub(super) fn rope_table(config: &Config, positions: usize) -> Arc<RopeTable> {
    Arc::new(RopeTable::new(
        positions,
        &config.rotary.frequencies(config.head_dim()),
    ))
}
