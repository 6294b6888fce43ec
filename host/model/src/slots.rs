//! Rows that are sampled at the same time. Each row has a slot in the KV cache until it ends, and
//! then a waiting row takes the slot.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use candle_core::Tensor;

use super::decoder::Decoder;
use super::kv_cache::{KvCache, PromptSlot};
use super::ops::{self, DecodeRows, Rope, RopeTable};
use super::packed::{Packed, rope_table};
use super::policy::Policy;

/// Most tokens that run through the model at once on a CPU; also the most rows of one thread.
const MOST_TOKENS: usize = 128;
/// Divides the number of tokens of a GPU's passes if rows continue in any order.
const MULTIPLE: usize = 64;
/// Waiting rows are admitted when one slot in `SHARE` is free, so that prompts run through the
/// model together.
const SHARE: usize = 8;

/// Refuses an empty prompt, and ids outside the vocabulary.
pub(super) fn check_prompts(prompts: &[Vec<u32>], vocab_size: usize) -> Result<()> {
    for (row, prompt) in prompts.iter().enumerate() {
        ensure!(
            !prompt.is_empty(),
            "prompt {row} has no token (give at least one)"
        );
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab_size) {
            bail!(
                "prompt {row}: token id {id} is outside the vocabulary of {vocab_size} \
                 (use the model's tokenizer)"
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

/// A token of a row that has not run through the model yet.
#[derive(Clone, Copy)]
pub(super) struct NewToken {
    pub(super) row: usize,
    pub(super) id: u32,
}

/// Limits of the rows that are sampled at the same time.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Most rows at a time; 0 is no limit.
    pub(super) rows: usize,
    /// Longest completion, tokens.
    pub(super) completion: usize,
    /// True if rows continue in any order. Then no bit of a row may depend on which tokens run
    /// through the model beside it.
    pub(super) any_order: bool,
}

/// Sizes of the passes over new tokens.
struct PassSizes {
    /// Most tokens of a pass.
    most: usize,
    /// Fewest tokens of a pass, which is filled up if it has fewer.
    fewest: usize,
    /// Fewest rows whose logits are computed.
    fewest_rows: usize,
}

impl PassSizes {
    /// On a GPU, matrix libraries and kernels choose their order of sums by the number of tokens
    /// and by the longest row. So where rows continue in any order, all passes have equally many
    /// tokens, and one token fills the last column of the cache.
    fn new(slots: usize, any_order: bool, on_cpu: bool) -> Self {
        if on_cpu {
            return Self {
                most: MOST_TOKENS,
                fewest: 0,
                fewest_rows: 0,
            };
        }
        if !any_order {
            return Self {
                most: slots,
                fewest: 0,
                fewest_rows: 0,
            };
        }
        let tokens = (slots + 1).next_multiple_of(MULTIPLE);
        Self {
            most: tokens - 1,
            fewest: tokens,
            fewest_rows: slots,
        }
    }
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
    any_order: bool,
    sizes: PassSizes,
    /// Number of columns of the cache.
    longest: usize,
}

impl<'a> Slots<'a> {
    pub(super) fn new(
        policy: &'a Policy,
        model: &'a Decoder,
        prompts: &'a [Vec<u32>],
        limits: Limits,
    ) -> Result<Self> {
        let config = policy.config();
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + limits.completion;
        let count = match limits.rows {
            0 => prompts.len(),
            most => most.min(prompts.len()),
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
            any_order: limits.any_order,
            sizes: PassSizes::new(count, limits.any_order, policy.device().is_cpu()),
            longest,
        })
    }

    /// True if a row waits for its first turn and a slot is free.
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
        let rows = self.waiting..self.waiting + self.next_to_admit();
        self.waiting = rows.end;
        for row in rows.clone() {
            self.places[row] = self.free.pop().expect("a slot is free for each row");
        }
        let packed = Packed::of(
            self.prompts[rows.clone()]
                .iter()
                .map(|ids| (ids.as_slice(), [].as_slice())),
            true,
        );
        let x = self.run_prompts(&packed, rows.clone())?;
        self.predict_first(&packed, &x, rows).map(Some)
    }

    /// Number of waiting rows that are admitted together.
    fn next_to_admit(&self) -> usize {
        let count = self.free.len().min(self.prompts.len() - self.waiting);
        // On a GPU the first rows are always the same ones.
        let same_rows = self.waiting == 0 && !self.policy.device().is_cpu();
        if !self.any_order || same_rows {
            return count;
        }
        let waiting = &self.prompts[self.waiting..][..count];
        waiting
            .iter()
            .take_while(|prompt| **prompt == waiting[0])
            .count()
    }

    /// Runs the prompts of `rows` through the model, and stores their keys and values. Returns the
    /// residual stream of the packed tokens, `[N, D]`.
    fn run_prompts(&self, packed: &Packed, rows: Range<usize>) -> Result<Tensor> {
        let device = self.policy.device();
        let tokens = packed.with_table(self.table.clone(), device)?;
        // The first rows fill the whole cache at once.
        if rows.start == 0 && rows.len() == self.count {
            let places = self.prompt_tokens(packed, rows)?;
            return self.model.residual(&tokens, |layer, saved| {
                self.cache.fill_all(layer, &saved.heads, &places)
            });
        }
        let slots: Vec<PromptSlot> = rows
            .clone()
            .map(|row| PromptSlot {
                tokens: packed.prompt(row - rows.start),
                cache_row: self.places[row],
            })
            .collect();
        self.model.residual(&tokens, |layer, saved| {
            self.cache.fill(layer, &saved.heads, &slots)
        })
    }

    /// For each of `rows`, the packed tokens of its prompt, followed by `u32::MAX` up to the
    /// longest prompt, `[B, P]`.
    fn prompt_tokens(&self, packed: &Packed, rows: Range<usize>) -> Result<Tensor> {
        let count = rows.len();
        let lengths = self.prompts[rows].iter().map(Vec::len);
        let longest = lengths.max().unwrap_or(0);
        let mut tokens = Vec::with_capacity(count * longest);
        for row in 0..count {
            tokens.extend(packed.prompt(row).map(|token| token as u32));
            tokens.resize((row + 1) * longest, u32::MAX);
        }
        Ok(Tensor::from_vec(
            tokens,
            (count, longest),
            self.policy.device(),
        )?)
    }

    /// Features and logits for the first token of each of `rows`, from the residual stream `x` of
    /// their prompts. Rows with the same prompt share the computation.
    fn predict_first(&self, packed: &Packed, x: &Tensor, rows: Range<usize>) -> Result<Next> {
        let mut ends = Vec::new();
        let mut prompt_of_row = Vec::new();
        for row in 0..rows.len() {
            let end = packed.prompt(row).end as u32 - 1;
            let known = ends.iter().position(|other| *other == end);
            prompt_of_row.push(known.unwrap_or(ends.len()) as u32);
            if known.is_none() {
                ends.push(end);
            }
        }
        let ends = Tensor::new(ends, x.device())?;
        let prompt_of_row = Tensor::new(prompt_of_row, x.device())?;
        let features = self.model.features(&x.index_select(&ends, 0)?)?;
        let logits = self.model.logits(&features)?;
        Ok(Next {
            rows: rows.collect(),
            features: features.index_select(&prompt_of_row, 0)?,
            logits: logits.index_select(&prompt_of_row, 0)?,
        })
    }

    /// Runs new tokens of some rows through the model. The tokens of a row stand together; the last
    /// of them predicts the row's next token.
    pub(super) fn append(&mut self, tokens: &[NewToken]) -> Result<Next> {
        let mut rows = Vec::new();
        let mut streams = Vec::new();
        let mut read = 0;
        for part in tokens.chunks(self.sizes.most) {
            let x = self.run(part)?;
            // Places of the tokens after which another row, or nothing, follows.
            let mut last = Vec::new();
            for (place, token) in part.iter().enumerate() {
                let following = tokens.get(read + place + 1);
                if following.is_none_or(|following| following.row != token.row) {
                    last.push(place as u32);
                    rows.push(token.row);
                }
            }
            read += part.len();
            if last.len() == part.len() {
                streams.push(x);
            } else if !last.is_empty() {
                streams.push(x.index_select(&Tensor::new(last, x.device())?, 0)?);
            }
        }
        let x = match streams.as_slice() {
            [x] => x.clone(),
            _ => Tensor::cat(&streams, 0)?,
        };
        self.predict(rows, x)
    }

    /// Features and logits for the next token of `rows`, from their residual streams `x`.
    fn predict(&self, rows: Vec<usize>, mut x: Tensor) -> Result<Next> {
        let count = rows.len();
        let missing = self.sizes.fewest_rows.saturating_sub(count);
        if missing > 0 {
            let filled = (0..count as u32).chain(iter::repeat_n(0, missing));
            x = x.index_select(&Tensor::from_iter(filled, x.device())?, 0)?;
        }
        let mut features = self.model.features(&x)?;
        let mut logits = self.model.logits(&features)?;
        if missing > 0 {
            features = features.narrow(0, 0, count)?;
            logits = logits.narrow(0, 0, count)?;
        }
        Ok(Next {
            rows,
            features,
            logits,
        })
    }

    /// The last layer's output for new tokens, `[tokens, D]`.
    fn run(&mut self, tokens: &[NewToken]) -> Result<Tensor> {
        let mut places = Vec::new();
        let mut positions = Vec::new();
        let mut ids = Vec::new();
        for token in tokens {
            places.push(self.places[token.row]);
            positions.push(self.lengths[token.row]);
            ids.push(token.id);
            self.lengths[token.row] += 1;
        }
        // Filling tokens go to the last column, which no row reads: only the last token of the
        // longest completion belongs there, and it never runs through the model.
        let all = tokens.len().max(self.sizes.fewest);
        places.resize(all, 0);
        positions.resize(all, self.longest - 1);
        ids.resize(all, 0);
        let rope = Rope::at(self.table.clone(), &positions);
        let rows = DecodeRows::new(places, positions);
        let ids = Tensor::from_slice(&ids, ids.len(), self.policy.device())?;
        // The norm of the next layer adds a layer's output to the stream: one launch on a GPU.
        let mut stream = self.model.embed(&ids)?;
        let mut output = None;
        for (number, layer) in self.model.layers.iter().enumerate() {
            let input = layer.normed(&stream, output.as_ref())?;
            let projected = layer.projected(&input.normed)?.heads;
            let mixed = self.cache.attend(number, &projected, &rope, &rows)?;
            let (more, gated) = layer.gated(&input.x, &mixed)?;
            stream = gated.x;
            output = Some(more);
        }
        if let Some(output) = output {
            stream = ops::add(&output, &stream)?;
        }
        if all > tokens.len() {
            stream = stream.narrow(0, 0, tokens.len())?;
        }
        Ok(stream)
    }

    /// Frees the slot of `row`, which has ended.
    pub(super) fn release(&mut self, row: usize) {
        self.free.push(self.places[row]);
    }
}
