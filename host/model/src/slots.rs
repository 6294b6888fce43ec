//! Rows that are sampled at the same time. Each has a slot in the KV cache until it ends; then a waiting row takes the slot.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use candle_core::Tensor;

use super::decoder::Decoder;
use super::kv_cache::KvCache;
use super::ops::{DecodeRows, Rope, RopeTable};
use super::packed::{Packed, rope_table};
use super::policy::Policy;

/// Waiting rows are admitted when one slot in `SHARE` is free, so that prompts run through the model together.
const SHARE: usize = 8;

pub(super) fn check_prompts(prompts: &[Vec<u32>], vocab_size: usize) -> Result<()> {
    for (row, prompt) in prompts.iter().enumerate() {
        ensure!(!prompt.is_empty(), "prompt {row} has no token (give at least one)");
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab_size) {
            bail!("prompt {row}: token id {id} is outside the vocabulary of {vocab_size} (use the model's tokenizer)");
        }
    }
    Ok(())
}

/// Features `[A, D]` and logits `[A, V]` for the next token of some rows.
pub(super) struct Next {
    pub(super) rows: Vec<usize>,
    pub(super) features: Tensor,
    pub(super) logits: Tensor,
}

/// The model with its KV cache. A row's tokens begin at the first column of its cache row.
pub(super) struct Slots<'a> {
    policy: &'a Policy,
    model: &'a Decoder,
    prompts: &'a [Vec<u32>],
    cache: KvCache,
    table: Arc<RopeTable>,
    /// Number of tokens of each row that are in the cache.
    lengths: Vec<usize>,
    /// Cache row of each row being sampled.
    places: Vec<usize>,
    free: Vec<usize>,
    /// Number of cache rows.
    count: usize,
    /// Index of the first waiting row.
    waiting: usize,
}

impl<'a> Slots<'a> {
    /// Makes slots for `most` rows at a time; 0 makes one for every row.
    pub(super) fn new(
        policy: &'a Policy,
        model: &'a Decoder,
        prompts: &'a [Vec<u32>],
        max_completion_length: usize,
        most: usize,
    ) -> Result<Self> {
        let config = policy.config();
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + max_completion_length;
        let count = if most == 0 { prompts.len() } else { most.min(prompts.len()) };
        Ok(Self {
            cache: KvCache::new(config, count, longest, policy.dtype(), policy.device())?,
            table: rope_table(config, longest),
            lengths: prompts.iter().map(Vec::len).collect(),
            places: vec![0; prompts.len()],
            free: (0..count).rev().collect(),
            policy,
            model,
            prompts,
            count,
            waiting: 0,
        })
    }

    /// Admits waiting rows if enough slots are free or no row is active. Returns `None` if they must wait, or if no row waits.
    pub(super) fn admit(&mut self, active: usize) -> Result<Option<Next>> {
        let count = self.free.len().min(self.prompts.len() - self.waiting);
        let enough = self.free.len() >= self.count.div_ceil(SHARE) || active == 0;
        if count == 0 || !enough {
            return Ok(None);
        }
        let rows = self.waiting..self.waiting + count;
        self.waiting = rows.end;
        let packed = Packed::of(self.prompts[rows.clone()].iter().map(|ids| (ids.as_slice(), [].as_slice())), true);
        for row in rows.clone() {
            self.places[row] = self.free.pop().expect("as many places are free as rows are let in");
        }
        let device = self.policy.device();
        // The first rows fill the whole cache at once.
        let length = rows.clone().map(|row| self.prompts[row].len()).max().unwrap_or(0);
        let place_of = |row: usize| {
            let prompt = packed.prompt(row);
            let none = length - prompt.len();
            prompt.map(|token| token as u32).chain(std::iter::repeat_n(u32::MAX, none))
        };
        let whole = (rows.start == 0 && count == self.count).then(|| (0..count).flat_map(place_of).collect());
        let whole = whole.map(|tokens: Vec<u32>| Tensor::from_vec(tokens, (count, length), device)).transpose()?;
        let x = self.model.residual(&packed.with_table(self.table.clone(), device)?, |layer, saved| match &whole {
            Some(tokens) => self.cache.fill_all(layer, &saved.heads, tokens),
            None => {
                let place = |row: usize| (packed.prompt(row - rows.start), self.places[row]);
                self.cache.fill(layer, &saved.heads, rows.clone().map(place))
            }
        })?;
        // The features and logits of each distinct prompt, and which of them each row has.
        let (mut ends, mut prompt_of) = (Vec::new(), Vec::new());
        for row in 0..count {
            let end = packed.prompt(row).end as u32 - 1;
            prompt_of.push(ends.iter().position(|other| *other == end).unwrap_or(ends.len()) as u32);
            ends.extend((prompt_of[row] as usize == ends.len()).then_some(end));
        }
        let (ends, prompt_of) = (Tensor::new(ends, device)?, Tensor::new(prompt_of, device)?);
        let features = self.model.features(&x.index_select(&ends, 0)?)?;
        let logits = self.model.logits(&features)?.index_select(&prompt_of, 0)?;
        Ok(Some(Next { rows: rows.collect(), features: features.index_select(&prompt_of, 0)?, logits }))
    }

    /// Runs the newest token of each of `rows` through the model.
    pub(super) fn step(&mut self, rows: Vec<usize>, newest: &[u32]) -> Result<Next> {
        let x = self.append(rows.iter().copied().zip(newest.iter().copied()))?;
        let features = self.model.features(&x)?;
        let logits = self.model.logits(&features)?;
        Ok(Next { rows, features, logits })
    }

    /// Runs further tokens of some rows through the model, and returns their last layer's output, `[tokens, D]`. Each token names its row.
    fn append(&mut self, tokens: impl Iterator<Item = (usize, u32)>) -> Result<Tensor> {
        let (mut places, mut positions, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (row, id) in tokens {
            places.push(self.places[row]);
            positions.push(self.lengths[row]);
            ids.push(id);
            self.lengths[row] += 1;
        }
        let rope = Rope::at(self.table.clone(), &positions);
        let rows = DecodeRows::new(places, positions);
        let ids = Tensor::from_slice(&ids, ids.len(), self.policy.device())?;
        let mut x = self.model.embed(&ids)?;
        for (number, layer) in self.model.layers.iter().enumerate() {
            let (_, projected) = layer.projected(&x)?;
            let mixed = self.cache.attend(number, &projected, &rope, &rows)?;
            (x, _) = layer.gated(&x, &mixed)?;
        }
        Ok(x)
    }

    pub(super) fn release(&mut self, row: usize) {
        self.free.push(self.places[row]);
    }
}
