//! The rows that are sampled at one time: each has a place in the key-value cache until it ends, and a waiting one takes it then.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use candle_core::Tensor;

use super::decoder::{Decoder, rope};
use super::kv_cache::KvCache;
use super::ops::{DecodeRows, Rope, RopeTable};
use super::policy::Policy;

/// Waiting rows are let in where one in so many places is free: prompts go through the model together.
const SHARE: usize = 8;

/// Refuses prompts that no model reads.
pub(super) fn check_prompts(prompts: &[Vec<u32>], vocab_size: usize) -> Result<()> {
    for (row, prompt) in prompts.iter().enumerate() {
        ensure!(!prompt.is_empty(), "prompt {row} has no token (give at least one)");
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab_size) {
            bail!("prompt {row}: token id {id} is outside the vocabulary of {vocab_size} (use the model's tokenizer)");
        }
    }
    Ok(())
}

/// Prompts padded on the left, each distinct one once.
struct Prompts {
    /// `[distinct, P]` row-major.
    ids: Vec<u32>,
    /// First real token of each distinct prompt.
    starts: Vec<usize>,
    length: usize,
    /// The distinct prompt of each row.
    prompt_of: Vec<u32>,
}

impl Prompts {
    fn new(prompts: &[Vec<u32>]) -> Self {
        let length = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let mut distinct: HashMap<&[u32], u32> = HashMap::new();
        let mut packed = Self { ids: Vec::new(), starts: Vec::new(), length, prompt_of: Vec::new() };
        for prompt in prompts {
            let next = packed.starts.len() as u32;
            let number = *distinct.entry(prompt.as_slice()).or_insert(next);
            packed.prompt_of.push(number);
            if number == next {
                let start = length - prompt.len();
                packed.starts.push(start);
                packed.ids.extend(std::iter::repeat_n(0, start).chain(prompt.iter().copied()));
            }
        }
        packed
    }
}

/// Features `[A, D]` and logits `[A, V]` of the next tokens of some rows.
pub(super) struct Next {
    pub(super) rows: Vec<usize>,
    pub(super) features: Tensor,
    pub(super) logits: Tensor,
}

/// The model with its cache. The newest tokens of all rows lie in one column of it, wherever their first ones do.
pub(super) struct Slots<'a> {
    policy: &'a Policy,
    model: &'a Decoder,
    prompts: &'a [Vec<u32>],
    cache: KvCache,
    table: Arc<RopeTable>,
    /// The column of each row's first token.
    starts: Vec<usize>,
    /// Each row's place in the cache.
    places: Vec<usize>,
    free: Vec<usize>,
    /// How many places there are.
    count: usize,
    /// The first row that waits.
    waiting: usize,
    /// The column of the next tokens, behind which the longest prompt has room at any time.
    column: usize,
    longest_prompt: usize,
    columns: usize,
}

impl<'a> Slots<'a> {
    /// Places for `most` rows at a time, or for all where it is 0.
    pub(super) fn new(
        policy: &'a Policy,
        model: &'a Decoder,
        prompts: &'a [Vec<u32>],
        max_completion_length: usize,
        most: usize,
    ) -> Result<Self> {
        let config = policy.config();
        let longest_prompt = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let longest = longest_prompt + max_completion_length;
        let count = if most == 0 { prompts.len() } else { most.min(prompts.len()) };
        // Rows that follow others begin where these are; room for two is enough, see `move_to_the_front`.
        let columns = if count < prompts.len() { 2 * longest } else { longest };
        Ok(Self {
            cache: KvCache::new(config, count, columns, policy.dtype(), policy.device())?,
            table: rope(config, &[], longest).table,
            starts: vec![0; prompts.len()],
            places: vec![0; prompts.len()],
            free: (0..count).rev().collect(),
            policy,
            model,
            prompts,
            count,
            waiting: 0,
            column: longest_prompt,
            longest_prompt,
            columns,
        })
    }

    /// Lets waiting rows in where enough places are free, or nobody else is there; none where they must wait, or nobody does.
    pub(super) fn admit(&mut self, active: usize) -> Result<Option<Next>> {
        let count = self.free.len().min(self.prompts.len() - self.waiting);
        let enough = self.free.len() >= self.count.div_ceil(SHARE) || active == 0;
        if count == 0 || !enough {
            return Ok(None);
        }
        let rows = self.waiting..self.waiting + count;
        self.waiting = rows.end;
        let prompts = Prompts::new(&self.prompts[rows.clone()]);
        for row in rows.clone() {
            self.starts[row] = self.column - self.prompts[row].len();
            self.places[row] = self.free.pop().expect("as many places are free as rows are let in");
        }
        let (device, length) = (self.policy.device(), prompts.length);
        let prompt_of = Tensor::new(prompts.prompt_of.as_slice(), device)?;
        let ids = Tensor::from_slice(&prompts.ids, (prompts.starts.len(), length), device)?;
        let rope = Rope::new(self.table.clone(), prompts.starts.as_slice().into(), 0);
        let from = self.column - length;
        let x = self.model.residual(&ids, &rope, |layer, saved| {
            if rows.start == 0 && count == self.count && from == 0 {
                return self.cache.fill(layer, &saved.heads, &prompt_of);
            }
            let places = prompts.prompt_of.iter().zip(&self.places[rows.clone()]);
            places.into_iter().try_for_each(|(prompt, place)| {
                self.cache.fill_place(layer, &saved.heads, *prompt as usize, *place, from)
            })
        })?;
        let last = x.narrow(1, length - 1, 1)?.squeeze(1)?;
        let features = self.model.features(&last)?;
        let logits = self.model.logits(&features)?.index_select(&prompt_of, 0)?;
        Ok(Some(Next { rows: rows.collect(), features: features.index_select(&prompt_of, 0)?, logits }))
    }

    /// Feeds the newest tokens of `rows`.
    pub(super) fn step(&mut self, rows: Vec<usize>, newest: &[u32]) -> Result<Next> {
        if self.column == self.columns {
            self.move_to_the_front(&rows)?;
        }
        let places = DecodeRows {
            cache_rows: rows.iter().map(|row| self.places[*row]).collect(),
            starts: rows.iter().map(|row| self.starts[*row]).collect(),
            index: self.column,
        };
        self.column += 1;
        let rope = Rope::new(self.table.clone(), places.starts.clone(), places.index);
        let ids = Tensor::from_slice(newest, (newest.len(), 1), self.policy.device())?;
        let mut x = self.model.embed(&ids)?;
        for (number, layer) in self.model.layers.iter().enumerate() {
            let (_, heads) = layer.heads(&x, &rope)?;
            let mixed = self.cache.attend(number, &heads, &places)?;
            (x, _) = layer.gated(&x, &mixed)?;
        }
        let features = self.model.features(&x.squeeze(1)?)?;
        let logits = self.model.logits(&features)?;
        Ok(Next { rows, features, logits })
    }

    /// Gives the place of a row that has ended to the next.
    pub(super) fn release(&mut self, row: usize) {
        self.free.push(self.places[row]);
    }

    /// Makes room at the end of the cache: no row is longer than half of it, so the columns before the first of them are as many at least. Room for
    /// the longest prompt stays.
    fn move_to_the_front(&mut self, rows: &[usize]) -> Result<()> {
        let first = rows.iter().map(|row| self.starts[*row]).min().unwrap_or(0).min(self.column - self.longest_prompt);
        for row in rows {
            self.cache.move_to_the_front(self.places[*row], first..self.column)?;
            self.starts[*row] -= first;
        }
        self.column -= first;
        Ok(())
    }
}
