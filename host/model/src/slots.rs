//! Rows that are sampled at the same time. Each has a slot in the KV cache until it ends; then a
//! waiting row takes the slot.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use candle_core::Tensor;

use super::decoder::Decoder;
use super::kv_cache::KvCache;
use super::ops::{self, DecodeRows, Rope, RopeTable};
use super::packed::{Packed, rope_table};
use super::policy::Policy;

/// Most tokens that run through the model at once on a CPU, as many as rows of one thread.
const MOST_TOKENS: usize = 128;
/// Where rows continue in any order, the number of tokens of a GPU's passes is a multiple of this.
const MULTIPLE: usize = 64;
/// Waiting rows are admitted when one slot in `SHARE` is free, so that prompts run through the
/// model together.
const SHARE: usize = 8;

pub(super) fn check_prompts(prompts: &[Vec<u32>], vocab_size: usize) -> Result<()> {
    for (row, prompt) in prompts.iter().enumerate() {
        ensure!(
            !prompt.is_empty(),
            "prompt {row} has no token (give at least one)"
        );
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab_size) {
            bail!(
                "prompt {row}: token id {id} is outside the vocabulary of {vocab_size} (use the model's tokenizer)"
            );
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
    /// True if rows continue in any order: then no bit of a row may depend on which tokens run
    /// through the model beside it.
    any_order: bool,
    /// Fewest and most tokens of a pass, which is filled if it has fewer.
    fewest: usize,
    most: usize,
    /// Fewest rows of which logits are computed.
    fewest_rows: usize,
    /// Number of columns of the cache.
    longest: usize,
}

impl<'a> Slots<'a> {
    /// Makes slots for `most` rows at a time; 0 makes one for every row. Where rows continue in
    /// `any_order` on a GPU, all passes have equally many tokens, and one of them fills the last
    /// column: there, matrix libraries and kernels choose their order of sums by the number of
    /// tokens and the longest row.
    pub(super) fn new(
        policy: &'a Policy,
        model: &'a Decoder,
        prompts: &'a [Vec<u32>],
        max_completion_length: usize,
        most: usize,
        any_order: bool,
    ) -> Result<Self> {
        let config = policy.config();
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + max_completion_length;
        let count = if most == 0 {
            prompts.len()
        } else {
            most.min(prompts.len())
        };
        let all = (count + 1).next_multiple_of(MULTIPLE);
        let (fewest, most, fewest_rows) = match (any_order, policy.device().is_cpu()) {
            (_, true) => (0, MOST_TOKENS, 0),
            (true, false) => (all, all - 1, count),
            (false, false) => (0, count, 0),
        };
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
            any_order,
            fewest,
            most,
            fewest_rows,
            longest,
        })
    }

    /// True if a row waits for its first turn, and has a place.
    pub(super) fn can_admit(&self) -> bool {
        !self.free.is_empty() && self.waiting < self.prompts.len()
    }

    /// Admits waiting rows if enough slots are free or the model is `idle`. Returns `None` if they
    /// must wait, or if no row waits.
    pub(super) fn admit(&mut self, idle: bool) -> Result<Option<Next>> {
        let enough = self.free.len() >= self.count.div_ceil(SHARE) || idle;
        if !self.can_admit() || !enough {
            return Ok(None);
        }
        let mut count = self.free.len().min(self.prompts.len() - self.waiting);
        // On a GPU the first rows are always the same ones.
        if self.any_order && (self.waiting > 0 || self.policy.device().is_cpu()) {
            let waiting = &self.prompts[self.waiting..][..count];
            count = waiting
                .iter()
                .take_while(|prompt| **prompt == waiting[0])
                .count();
        }
        let rows = self.waiting..self.waiting + count;
        self.waiting = rows.end;
        let packed = Packed::of(
            self.prompts[rows.clone()]
                .iter()
                .map(|ids| (ids.as_slice(), [].as_slice())),
            true,
        );
        for row in rows.clone() {
            self.places[row] = self
                .free
                .pop()
                .expect("as many places are free as rows are let in");
        }
        let device = self.policy.device();
        // The first rows fill the whole cache at once.
        let length = rows
            .clone()
            .map(|row| self.prompts[row].len())
            .max()
            .unwrap_or(0);
        let place_of = |row: usize| {
            let prompt = packed.prompt(row);
            let none = length - prompt.len();
            prompt
                .map(|token| token as u32)
                .chain(std::iter::repeat_n(u32::MAX, none))
        };
        let whole = (rows.start == 0 && count == self.count)
            .then(|| (0..count).flat_map(place_of).collect());
        let whole = whole
            .map(|tokens: Vec<u32>| Tensor::from_vec(tokens, (count, length), device))
            .transpose()?;
        let x = self.model.residual(
            &packed.with_table(self.table.clone(), device)?,
            |layer, saved| match &whole {
                Some(tokens) => self.cache.fill_all(layer, &saved.heads, tokens),
                None => {
                    let place = |row: usize| (packed.prompt(row - rows.start), self.places[row]);
                    self.cache
                        .fill(layer, &saved.heads, rows.clone().map(place))
                }
            },
        )?;
        // The features and logits of each distinct prompt, and which of them each row has.
        let (mut ends, mut prompt_of) = (Vec::new(), Vec::new());
        for row in 0..count {
            let end = packed.prompt(row).end as u32 - 1;
            prompt_of.push(
                ends.iter()
                    .position(|other| *other == end)
                    .unwrap_or(ends.len()) as u32,
            );
            ends.extend((prompt_of[row] as usize == ends.len()).then_some(end));
        }
        let (ends, prompt_of) = (Tensor::new(ends, device)?, Tensor::new(prompt_of, device)?);
        let features = self.model.features(&x.index_select(&ends, 0)?)?;
        let logits = self.model.logits(&features)?.index_select(&prompt_of, 0)?;
        Ok(Some(Next {
            rows: rows.collect(),
            features: features.index_select(&prompt_of, 0)?,
            logits,
        }))
    }

    /// Runs further tokens of some rows through the model. Those of a row stand together; the last
    /// of them predicts its next.
    pub(super) fn append(&mut self, tokens: &[(usize, u32)]) -> Result<Next> {
        let (mut rows, mut features) = (Vec::new(), Vec::new());
        let mut after = tokens
            .iter()
            .map(|(row, _)| Some(*row))
            .skip(1)
            .chain([None]);
        for part in tokens.chunks(self.most) {
            let is_last: Vec<bool> = part
                .iter()
                .map(|(row, _)| after.next() != Some(Some(*row)))
                .collect();
            let x = self.run(part)?;
            let last: Vec<u32> = (0..)
                .zip(&is_last)
                .filter_map(|(token, last)| last.then_some(token))
                .collect();
            if last.is_empty() {
                continue;
            }
            rows.extend(last.iter().map(|token| part[*token as usize].0));
            let all = last.len() == part.len();
            features.push(if all {
                x
            } else {
                x.index_select(&Tensor::new(last, x.device())?, 0)?
            });
        }
        let x = if features.len() == 1 {
            features.remove(0)
        } else {
            Tensor::cat(&features, 0)?
        };
        let count = rows.len();
        let of_rows = |all: Tensor| {
            if all.dim(0)? == count {
                Ok(all)
            } else {
                all.narrow(0, 0, count)
            }
        };
        let filling = std::iter::repeat_n(0, self.fewest_rows.saturating_sub(count));
        let x = match filling.len() {
            0 => x,
            _ => x.index_select(
                &Tensor::from_iter((0..count as u32).chain(filling), x.device())?,
                0,
            )?,
        };
        let features = self.model.features(&x)?;
        Ok(Next {
            rows,
            logits: of_rows(self.model.logits(&features)?)?,
            features: of_rows(features)?,
        })
    }

    /// The last layer's output for further tokens, `[tokens, D]`.
    fn run(&mut self, tokens: &[(usize, u32)]) -> Result<Tensor> {
        let (mut places, mut positions, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (row, id) in tokens {
            places.push(self.places[*row]);
            positions.push(self.lengths[*row]);
            ids.push(*id);
            self.lengths[*row] += 1;
        }
        // No token of a row reads the last column: that of the longest completion, which does not
        // run, has its place there.
        let all = tokens.len().max(self.fewest);
        places.resize(all, 0);
        positions.resize(all, self.longest - 1);
        ids.resize(all, 0);
        let rope = Rope::at(self.table.clone(), &positions);
        let rows = DecodeRows::new(places, positions);
        let ids = Tensor::from_slice(&ids, ids.len(), self.policy.device())?;
        // What a layer gives is added by the next one's norm, which on a GPU is one launch.
        let (mut stream, mut output) = (self.model.embed(&ids)?, None);
        for (number, layer) in self.model.layers.iter().enumerate() {
            let (x, normed) = layer.normed(&stream, output.as_ref())?;
            let (_, projected) = layer.projected(&normed)?;
            let mixed = self.cache.attend(number, &projected, &rope, &rows)?;
            let (more, gated) = layer.gated(&x, &mixed)?;
            (stream, output) = (gated.x, Some(more));
        }
        let x = output.map_or(Ok(stream.clone()), |output| ops::add(&output, &stream))?;
        Ok(if all > tokens.len() {
            x.narrow(0, 0, tokens.len())?
        } else {
            x
        })
    }

    pub(super) fn release(&mut self, row: usize) {
        self.free.push(self.places[row]);
    }
}
