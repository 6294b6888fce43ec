//! Sampling completions with a key-value cache.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use rand::Rng;

use super::captured::{Capture, Captured};
use super::decoder::{Decoder, rope};
use super::forward::host;
use super::kv_cache::{KvCache, decode_rows};
use super::ops;
use super::parallel::side_by_side;
use super::policy::Policy;
use super::sample::{Drawn, Sampling, Scratch};
use super::scores::Scores;
use crate::rng::uniform;

/// What is wrong when no token can be drawn.
const NOT_FINITE: &str = "the model produced a logit that is not finite (lower the learning rate)";
/// Most rows that one thread generates at a time.
const MOST_ROWS: usize = 128;

/// What to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Longest completion, tokens, the end-of-sequence token included; at least 1.
    pub max_completion_length: usize,
    /// Ids that end a completion; may be empty.
    pub eos_ids: Vec<u32>,
    /// Whether to return the log-probabilities of the drawn tokens.
    pub logps: bool,
    /// Whether to return the log-probabilities with which they were drawn.
    pub sampler_logps: bool,
    /// How many of the most likely tokens to return at each place, at most the vocabulary; 0 is none. They need `sampler_logps`.
    pub top_k: usize,
}

impl Generation {
    /// A length of 0, and what [`Sampling::check`] refuses.
    pub fn check(&self) -> Result<()> {
        ensure!(self.max_completion_length > 0, "`max_completion_length` is 0, expected at least 1");
        self.sampling.check()
    }
}

/// One sampled completion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Completion {
    /// Token ids, the end-of-sequence token included when it was drawn.
    pub ids: Vec<u32>,
    /// Whether the length limit ended it.
    pub truncated: bool,
    /// Log-probabilities of the ids under `logits / temperature` (1 when greedy) before top-k and top-p, nats; empty
    /// unless asked for.
    pub logps: Vec<f32>,
    /// Log-probabilities of the ids under the distribution that they were drawn from, top-k and top-p included, nats; empty unless
    /// asked for.
    pub sampler_logps: Vec<f32>,
    /// `[tokens, top_k]`: the ids of the most likely tokens at each place, most likely first; empty unless asked for.
    pub top_ids: Vec<u32>,
    /// Their log-probabilities under the distribution that the token was drawn from, nats: minus infinity for those left out.
    pub top_logps: Vec<f32>,
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
    /// Number of the first row in the whole batch.
    first_row: usize,
}

impl Prompts {
    fn new(prompts: &[Vec<u32>], rows: Range<usize>, vocab_size: usize) -> Result<Self> {
        let length = prompts[rows.clone()].iter().map(Vec::len).max().unwrap_or(0);
        let first_row = rows.start;
        let mut distinct: HashMap<&[u32], u32> = HashMap::new();
        let mut packed = Self { ids: Vec::new(), starts: Vec::new(), length, prompt_of: Vec::new(), first_row };
        for row in rows {
            let prompt = &prompts[row];
            ensure!(!prompt.is_empty(), "prompt {row} has no token (give at least one)");
            if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab_size) {
                bail!(
                    "prompt {row}: token id {id} is outside the vocabulary of {vocab_size} (use the model's tokenizer)"
                );
            }
            let next = packed.starts.len() as u32;
            let number = *distinct.entry(prompt.as_slice()).or_insert(next);
            packed.prompt_of.push(number);
            if number == next {
                let start = length - prompt.len();
                packed.starts.push(start);
                packed.ids.extend(std::iter::repeat_n(0, start).chain(prompt.iter().copied()));
            }
        }
        Ok(packed)
    }
}

impl Policy {
    /// Samples one completion per prompt; row `b` draws from `rngs[b]` alone, one number per token.
    ///
    /// What a row draws does not depend on the other rows, up to the rounding of the logits.
    pub fn generate<R: Rng + Send>(
        &self,
        prompts: &[Vec<u32>],
        generation: &Generation,
        rngs: &mut [R],
    ) -> Result<Vec<Completion>> {
        Ok(self.generate_scored(prompts, generation, None, rngs)?.0)
    }

    /// The same, with the scores of the drawn tokens, `[B, T]`, where `capture` asks for them.
    ///
    /// They are those of [`Policy::forward`] up to the rounding of a pass that has seen one token at a time.
    pub fn generate_scored<R: Rng + Send>(
        &self,
        prompts: &[Vec<u32>],
        generation: &Generation,
        capture: Option<Capture>,
        rngs: &mut [R],
    ) -> Result<(Vec<Completion>, Option<Scores>)> {
        generation.check()?;
        ensure!(rngs.len() == prompts.len(), "{} random streams for {} prompts", rngs.len(), prompts.len());
        ensure!(!prompts.is_empty(), "there is no prompt (give at least one)");
        let mut parts = Vec::new();
        let mut rest = rngs;
        for rows in self.split(prompts.len(), MOST_ROWS) {
            let (own, others) = rest.split_at_mut(rows.len());
            parts.push((Prompts::new(prompts, rows, self.config().vocab_size)?, own));
            rest = others;
        }
        let model = self.sampler()?;
        let generate = |(prompts, rngs)| {
            let mut captured = capture.map(Captured::new);
            let completions = self.generate_part(&model, prompts, generation, rngs, captured.as_mut(), |_| Ok(()))?;
            Ok((completions, captured))
        };
        let parts = side_by_side(parts, generate)?;
        let tokens = parts.iter().flat_map(|(completions, _)| completions).map(|one| one.ids.len()).max().unwrap_or(0);
        let (mut completions, mut scores) = (Vec::with_capacity(prompts.len()), Vec::new());
        for (part, captured) in parts {
            scores.extend(captured.map(|captured| captured.finish(part.len(), tokens)).transpose()?);
            completions.extend(part);
        }
        Ok((completions, if scores.is_empty() { None } else { Some(Scores::join(scores)?) }))
    }

    /// Samples one completion, as [`Policy::generate`] does, and tells each token when it is drawn.
    pub fn stream<R: Rng>(
        &self,
        prompt: &[u32],
        generation: &Generation,
        rng: R,
        mut tell: impl FnMut(u32) -> Result<()>,
    ) -> Result<Completion> {
        generation.check()?;
        let prompts = Prompts::new(&[prompt.to_vec()], 0..1, self.config().vocab_size)?;
        let model = self.sampler()?;
        let tell = |completions: &[Completion]| completions[0].ids.last().map_or(Ok(()), |id| tell(*id));
        let completions = self.generate_part(&model, prompts, generation, &mut [rng], None, tell)?;
        completions.into_iter().next().context("a prompt has a completion")
    }

    fn sampler(&self) -> Result<Decoder> {
        let model = Decoder::new(self)?;
        if self.is_small() { model.pack() } else { Ok(model.stream()) }
    }

    /// `after` sees the completions so far whenever every active row has a new token.
    fn generate_part<R: Rng>(
        &self,
        model: &Decoder,
        prompts: Prompts,
        generation: &Generation,
        rngs: &mut [R],
        mut captured: Option<&mut Captured>,
        mut after: impl FnMut(&[Completion]) -> Result<()>,
    ) -> Result<Vec<Completion>> {
        let first_row = prompts.first_row;
        let mut cached = Cached::new(self, model, prompts, generation.max_completion_length)?;
        let mut batch = Batch::new(generation, rngs, first_row);
        let (mut features, mut logits) = cached.prefill()?;
        loop {
            let rows = captured.as_ref().map(|_| batch.active.clone());
            let finished = batch.take(&logits)?;
            if let (Some(captured), Some(rows)) = (&mut captured, rows) {
                captured.take(rows, &batch.completions, &features, &logits)?;
            }
            after(&batch.completions)?;
            if finished {
                return Ok(batch.completions);
            }
            (features, logits) = cached.step(&batch)?;
        }
    }
}

/// The model with its cache.
struct Cached<'a> {
    policy: &'a Policy,
    model: &'a Decoder,
    prompts: Prompts,
    cache: KvCache,
    /// First real token of each row.
    starts: Vec<usize>,
    rope: ops::Rope,
}

impl<'a> Cached<'a> {
    fn new(policy: &'a Policy, model: &'a Decoder, prompts: Prompts, max_completion_length: usize) -> Result<Self> {
        let longest = prompts.length + max_completion_length;
        let (config, rows) = (policy.config(), prompts.prompt_of.len());
        let cache = KvCache::new(config, rows, longest, policy.dtype(), policy.device())?;
        let starts = prompts.prompt_of.iter().map(|number| prompts.starts[*number as usize]).collect();
        let rope = rope(config, &prompts.starts, longest);
        Ok(Self { policy, model, prompts, cache, starts, rope })
    }

    /// Fills the cache with the prompts and returns the first features, `[B, D]`, and logits, `[B, V]`.
    fn prefill(&mut self) -> Result<(Tensor, Tensor)> {
        let (device, length) = (self.policy.device(), self.prompts.length);
        let prompt_of = Tensor::new(self.prompts.prompt_of.as_slice(), device)?;
        let ids = Tensor::from_slice(&self.prompts.ids, (self.prompts.starts.len(), length), device)?;
        let x =
            self.model.residual(&ids, &self.rope, |layer, saved| self.cache.fill(layer, &saved.heads, &prompt_of))?;
        let last = x.narrow(1, length - 1, 1)?.squeeze(1)?;
        let features = self.model.features(&last)?;
        let logits = self.model.logits(&features)?.index_select(&prompt_of, 0)?;
        Ok((features.index_select(&prompt_of, 0)?, logits))
    }

    /// Feeds the last token of every active row and returns their next features, `[A, D]`, and logits, `[A, V]`.
    fn step<R>(&mut self, batch: &Batch<'_, R>) -> Result<(Tensor, Tensor)> {
        let index = self.prompts.length + batch.length - 1;
        let rows = decode_rows(&batch.active, &self.starts, index);
        let rope = ops::Rope::new(self.rope.table.clone(), rows.starts.clone(), index);
        let ids = Tensor::from_slice(&batch.last_ids, (batch.last_ids.len(), 1), self.policy.device())?;
        let mut x = self.model.embed(&ids)?;
        for (number, layer) in self.model.layers.iter().enumerate() {
            let (_, heads) = layer.heads(&x, &rope)?;
            let mixed = self.cache.attend(number, &heads, &rows)?;
            (x, _) = layer.gated(&x, &mixed)?;
        }
        let features = self.model.features(&x.squeeze(1)?)?;
        let logits = self.model.logits(&features)?;
        Ok((features, logits))
    }
}

/// The rows being sampled.
struct Batch<'a, R> {
    generation: &'a Generation,
    rngs: &'a mut [R],
    completions: Vec<Completion>,
    /// Rows that go on, ascending.
    active: Vec<usize>,
    /// The newest token of each active row.
    last_ids: Vec<u32>,
    /// Tokens of each active completion.
    length: usize,
    scratch: Scratch,
    first_row: usize,
}

impl<'a, R: Rng> Batch<'a, R> {
    fn new(generation: &'a Generation, rngs: &'a mut [R], first_row: usize) -> Self {
        let rows = rngs.len();
        Self {
            generation,
            rngs,
            completions: vec![Completion::default(); rows],
            active: (0..rows).collect(),
            last_ids: Vec::new(),
            length: 0,
            scratch: Scratch::default(),
            first_row,
        }
    }

    /// Draws a token for every active row from `logits` `[A, V]`; says whether all rows are finished.
    fn take(&mut self, logits: &Tensor) -> Result<bool> {
        let Generation { sampling, max_completion_length, eos_ids, .. } = self.generation;
        self.length += 1;
        let ids = self.draw(sampling, logits)?;
        self.last_ids.clear();
        let mut going = Vec::with_capacity(self.active.len());
        for (row, id) in self.active.iter().zip(ids) {
            let id = id.context(NOT_FINITE).with_context(|| {
                format!("cannot sample token {} of completion {}", self.length, self.first_row + row)
            })?;
            let completion = &mut self.completions[*row];
            completion.ids.push(id);
            if eos_ids.contains(&id) {
                continue;
            }
            if self.length == *max_completion_length {
                completion.truncated = true;
                continue;
            }
            going.push(*row);
            self.last_ids.push(id);
        }
        self.active = going;
        Ok(self.active.is_empty())
    }

    /// A token for every active row, with what is asked for besides.
    fn draw(&mut self, sampling: &Sampling, logits: &Tensor) -> Result<Vec<Option<u32>>> {
        let number = |row: &usize| if sampling.temperature == 0.0 { 0.0 } else { uniform(&mut self.rngs[*row]) };
        let numbers: Vec<f64> = self.active.iter().map(number).collect();
        let Generation { logps, sampler_logps, top_k, .. } = *self.generation;
        let drawn = if !logps && sampling.can_draw_rows(logits)? {
            sampling.draw_rows(logits, &numbers, sampler_logps, &mut self.scratch)?
        } else {
            self.draw_each(sampling, logits, &numbers)?
        };
        if sampler_logps {
            for (row, drawn) in self.active.iter().zip(&drawn) {
                self.completions[*row].sampler_logps.extend(drawn.map(|drawn| drawn.logp));
            }
        }
        if let (1.., Some(drawn)) = (top_k, drawn.iter().copied().collect::<Option<Vec<_>>>()) {
            let tops = sampling.tops(logits, top_k, &drawn)?;
            for (row, (ids, logps)) in self.active.iter().zip(tops) {
                self.completions[*row].top_ids.extend(ids);
                self.completions[*row].top_logps.extend(logps);
            }
        }
        Ok(drawn.into_iter().map(|drawn| drawn.map(|drawn| drawn.id)).collect())
    }

    /// A token for every active row, drawn from the logits on the host.
    fn draw_each(&mut self, sampling: &Sampling, logits: &Tensor, numbers: &[f64]) -> Result<Vec<Option<Drawn>>> {
        let Generation { logps, sampler_logps, .. } = *self.generation;
        let (vocab, logits) = (logits.dim(1)?, host(logits)?);
        let mut all = Vec::with_capacity(numbers.len());
        for ((row, number), logits) in self.active.iter().zip(numbers).zip(logits.chunks_exact(vocab)) {
            let drawn = sampling.draw(logits, *number, sampler_logps, &mut self.scratch);
            if let (true, Some(drawn)) = (logps, drawn) {
                self.completions[*row].logps.push(logp(logits, drawn.id, sampling.temperature));
            }
            all.push(drawn);
        }
        Ok(all)
    }
}

/// `log_softmax(logits / temperature)[id]`, with temperature 1 in place of 0, nats.
fn logp(logits: &[f32], id: u32, temperature: f64) -> f32 {
    let temperature = if temperature == 0.0 { 1.0 } else { temperature };
    let scaled = |logit: f32| f64::from(logit) / temperature;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| (scaled(*logit) - scaled(largest)).exp()).sum();
    (scaled(logits[id as usize]) - scaled(largest) - sum.ln()) as f32
}
