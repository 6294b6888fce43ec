//! Sampling of completions with a KV cache.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use host_rng::uniform;
use rand::Rng;
use rayon::prelude::*;

use super::captured::{Capture, Captured};
use super::decoder::Decoder;
use super::forward::host;
use super::narrowed;
use super::outputs::TokenOutputs;
use super::parallel::side_by_side;
use super::partner::{Partner, Reply, SampledTokens};
use super::policy::Policy;
use super::sampling::{Drawn, SamplingParams, Scratch};
use super::size::{self, Shape};
use super::slots::{Next, Slots, check_prompts};

/// Error message where no token can be drawn.
const NOT_FINITE: &str = "the model produced a logit that is not finite (lower the learning rate)";
/// Most rows that one thread generates at once.
const MOST_ROWS: usize = 128;

/// Counter behind [`sampled`].
static SAMPLED: AtomicUsize = AtomicUsize::new(0);

/// Number of completions that this process has sampled, for progress display.
pub fn sampled() -> usize {
    SAMPLED.load(Ordering::Relaxed)
}

/// Settings of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Temperature and truncation of the sampler.
    pub sampling: SamplingParams,
    /// Longest completion in tokens, including the end-of-sequence token; at least 1.
    pub max_completion_length: usize,
    /// Longest turn in tokens, where a partner answers; 0 is no limit.
    pub max_turn_length: usize,
    /// Ids that end a turn, which is the completion where no partner answers; may be empty.
    pub eos_ids: Vec<u32>,
    /// True to return the log-probabilities of the drawn tokens.
    pub logps: bool,
    /// True to return the log-probabilities under the distribution that the tokens were drawn from.
    pub sampler_logps: bool,
    /// Number of most likely tokens to return at each position, at most the vocabulary; 0 returns
    /// none. They need `sampler_logps`.
    pub top_k: usize,
    /// Most rows that are sampled at once; further rows wait for one to end. 0 is no limit.
    pub max_num_seqs: usize,
}

impl Generation {
    /// Refuses a completion length of 0, and settings that [`SamplingParams::check`] refuses.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.max_completion_length > 0,
            "`max_completion_length` is 0, expected at least 1"
        );
        self.sampling.check()
    }
}

impl Policy {
    /// Samples one completion per prompt. Row `b` uses `rngs[b]` alone, with one random number per
    /// token.
    ///
    /// A row's completion does not depend on the other rows: on a CPU by no bit of its logits, on a
    /// GPU up to their rounding.
    pub fn generate<R: Rng + Send>(
        &self,
        prompts: &[Vec<u32>],
        generation: &Generation,
        rngs: &mut [R],
    ) -> Result<Vec<SampledTokens>> {
        Ok(self
            .generate_with_outputs(prompts, generation, None, rngs, None)?
            .0)
    }

    /// Samples one completion per prompt as [`Policy::generate`] does. If `capture` asks for them,
    /// it also returns the outputs of the drawn tokens, `[B, T]`. With `partners` a completion is a
    /// conversation: the partner of a range of rows answers their turns, and counts rows from the
    /// range's first.
    ///
    /// The outputs equal those of [`Policy::forward`] up to rounding, because each pass here
    /// processes one token.
    pub fn generate_with_outputs<R: Rng + Send>(
        &self,
        prompts: &[Vec<u32>],
        generation: &Generation,
        capture: Option<Capture>,
        rngs: &mut [R],
        partners: Option<&(dyn Fn(Range<usize>) -> Box<dyn Partner> + Sync)>,
    ) -> Result<(Vec<SampledTokens>, Option<TokenOutputs>)> {
        generation.check()?;
        ensure!(
            rngs.len() == prompts.len(),
            "{} random streams for {} prompts",
            rngs.len(),
            prompts.len()
        );
        ensure!(
            !prompts.is_empty(),
            "there is no prompt (give at least one)"
        );
        check_prompts(prompts, self.config().vocab_size)?;
        let ranges = self.split(prompts.len(), MOST_ROWS);
        let most = generation.max_num_seqs.div_ceil(ranges.len());
        let mut parts = Vec::new();
        let mut rest = rngs;
        for rows in ranges {
            let (own, others) = rest.split_at_mut(rows.len());
            parts.push((
                &prompts[rows.clone()],
                Batch::new(generation, own, rows.start),
                partners.map(|of| of(rows)),
            ));
            rest = others;
        }
        let model = self.sampler()?;
        let generate = |(prompts, batch, partner): (_, _, Option<Box<dyn Partner>>)| {
            let mut captured = capture.map(Captured::new);
            let completions = self.generate_part(
                &model,
                (prompts, most),
                batch,
                captured.as_mut(),
                partner,
                |_| Ok(()),
            )?;
            Ok((completions, captured))
        };
        let parts = side_by_side(parts, generate)?;
        let tokens = parts
            .iter()
            .flat_map(|(completions, _)| completions)
            .map(|one| one.ids.len())
            .max()
            .unwrap_or(0);
        let (mut completions, mut outputs) = (Vec::with_capacity(prompts.len()), Vec::new());
        for (part, captured) in parts {
            outputs.extend(
                captured
                    .map(|captured| captured.finish(part.len(), tokens))
                    .transpose()?,
            );
            completions.extend(part);
        }
        Ok((
            completions,
            if outputs.is_empty() {
                None
            } else {
                Some(TokenOutputs::join(outputs)?)
            },
        ))
    }

    /// Samples one completion as [`Policy::generate`] does, and reports each token when it is
    /// drawn.
    pub fn stream<R: Rng>(
        &self,
        prompt: &[u32],
        generation: &Generation,
        rng: R,
        mut tell: impl FnMut(u32) -> Result<()>,
    ) -> Result<SampledTokens> {
        generation.check()?;
        let prompts = [prompt.to_vec()];
        check_prompts(&prompts, self.config().vocab_size)?;
        let model = self.sampler()?;
        let tell = |completions: &[SampledTokens]| {
            completions[0].ids.last().map_or(Ok(()), |id| tell(*id))
        };
        let mut rngs = [rng];
        let completions = self.generate_part(
            &model,
            (&prompts, 0),
            Batch::new(generation, &mut rngs, 0),
            None,
            None,
            tell,
        )?;
        completions
            .into_iter()
            .next()
            .context("a prompt has a completion")
    }

    /// Memory that sampling of `shape` takes: purposes and bytes.
    pub fn sampling_bytes(&self, shape: Shape) -> [(&'static str, u128); 3] {
        let weights = self.weights().element_count() as u128;
        let copied = match (self.is_packed(), self.is_rounded()) {
            (true, _) => size::BYTES * weights,
            (false, true) => DType::BF16.size_in_bytes() as u128 * weights,
            (false, false) => self.copied_bytes().0,
        };
        size::sampling(self.config(), shape, self.dtype(), copied)
    }

    /// True if matrix products read f32 weights and round them.
    pub(super) fn is_rounded(&self) -> bool {
        narrowed::is_rounded(self.device(), self.dtype())
    }

    /// True if the sampler copies its matrices into another memory order.
    fn is_packed(&self) -> bool {
        self.is_small() && !self.is_rounded()
    }

    fn sampler(&self) -> Result<Decoder> {
        let model = self.decoder()?;
        if self.is_packed() {
            model.pack()
        } else {
            model.stream()
        }
    }

    /// Samples some rows. `after` receives the completions so far whenever some rows have a new
    /// token.
    fn generate_part<R: Rng>(
        &self,
        model: &Decoder,
        (prompts, most): (&[Vec<u32>], usize),
        mut batch: Batch<'_, R>,
        mut captured: Option<&mut Captured>,
        mut partner: Option<Box<dyn Partner>>,
        mut after: impl FnMut(&[SampledTokens]) -> Result<()>,
    ) -> Result<Vec<SampledTokens>> {
        let mut slots = Slots::new(
            self,
            model,
            prompts,
            batch.generation.max_completion_length,
            most,
            partner.is_some(),
        )?;
        loop {
            if let Some(partner) = partner.as_mut().filter(|_| batch.waiting > 0) {
                let idle = batch.new.is_empty() && !slots.can_admit();
                let ended = batch.hear(partner.replies(idle)?);
                SAMPLED.fetch_add(ended.len(), Ordering::Relaxed);
                ended.into_iter().for_each(|row| slots.release(row));
            }
            let next = match slots.admit(batch.new.is_empty())? {
                Some(admitted) => admitted,
                None if batch.new.is_empty() && batch.waiting > 0 => continue,
                None if batch.new.is_empty() => return Ok(batch.completions),
                None => slots.append(&std::mem::take(&mut batch.new))?,
            };
            let ended = batch.take(&next)?;
            if let Some(partner) = &mut partner {
                batch.waiting += ended.len();
                ended
                    .iter()
                    .try_for_each(|row| partner.listen(*row, &batch.completions[*row]))?;
            } else {
                SAMPLED.fetch_add(ended.len(), Ordering::Relaxed);
                ended.into_iter().for_each(|row| slots.release(row));
            }
            if let Some(captured) = &mut captured {
                captured.take(&next, batch.newest(&next.rows)?)?;
            }
            after(&batch.completions)?;
        }
    }
}

struct Batch<'a, R> {
    generation: &'a Generation,
    rngs: &'a mut [R],
    completions: Vec<SampledTokens>,
    /// Tokens that have not run through the model, each with its row: of rows whose turns go on the
    /// newest, and behind it a partner's reply.
    new: Vec<(usize, u32)>,
    /// Number of rows that wait for a partner's reply.
    waiting: usize,
    scratch: Scratch,
    first_row: usize,
}

impl<'a, R: Rng> Batch<'a, R> {
    fn new(generation: &'a Generation, rngs: &'a mut [R], first_row: usize) -> Self {
        let rows = rngs.len();
        Self {
            generation,
            rngs,
            completions: vec![SampledTokens::default(); rows],
            new: Vec::new(),
            waiting: 0,
            scratch: Scratch::default(),
            first_row,
        }
    }

    /// Adds a partner's replies. The rows that have ended are returned.
    fn hear(&mut self, replies: Vec<Reply>) -> Vec<usize> {
        let Generation {
            max_completion_length,
            logps,
            sampler_logps,
            top_k,
            ..
        } = *self.generation;
        self.waiting -= replies.len();
        let mut ended = Vec::new();
        for Reply { row, ids } in replies {
            let completion = &mut self.completions[row];
            let Some(ids) =
                ids.filter(|ids| completion.ids.len() + ids.len() < max_completion_length)
            else {
                ended.push(row);
                continue;
            };
            self.new.extend(
                completion
                    .ids
                    .last()
                    .into_iter()
                    .chain(&ids)
                    .map(|id| (row, *id)),
            );
            let from = completion.ids.len();
            completion.ids.extend(&ids);
            completion.added.push(from..completion.ids.len());
            let resize =
                |values: &mut Vec<f32>, width| values.resize(completion.ids.len() * width, 0.0);
            resize(&mut completion.logps, usize::from(logps));
            resize(&mut completion.sampler_logps, usize::from(sampler_logps));
            resize(&mut completion.top_logps, top_k);
            completion.top_ids.resize(completion.ids.len() * top_k, 0);
        }
        ended
    }

    /// Draws a token for each row of `next`. The rows whose turns have ended are returned.
    fn take(&mut self, next: &Next) -> Result<Vec<usize>> {
        let Generation {
            sampling,
            max_completion_length,
            max_turn_length,
            eos_ids,
            ..
        } = self.generation;
        let ids = self.draw(sampling, next)?;
        let mut ended = Vec::new();
        for (row, id) in next.rows.iter().zip(ids) {
            let completion = &mut self.completions[*row];
            let id = id.context(NOT_FINITE).with_context(|| {
                let (token, row) = (completion.ids.len() + 1, self.first_row + row);
                format!("cannot sample token {token} of completion {row}")
            })?;
            completion.ids.push(id);
            let (length, before) = (
                completion.ids.len(),
                completion.added.last().map_or(0, |added| added.end),
            );
            completion.truncated = length == *max_completion_length && !eos_ids.contains(&id);
            if completion.truncated || eos_ids.contains(&id) || length - before == *max_turn_length
            {
                ended.push(*row);
                continue;
            }
            self.new.push((*row, id));
        }
        Ok(ended)
    }

    /// Newest token of each of `rows`: its id, and its index in the completion.
    fn newest(&self, rows: &[usize]) -> Result<Vec<(u32, usize)>> {
        let newest = |row: &usize| {
            let ids = &self.completions[*row].ids;
            Some((*ids.last()?, ids.len() - 1))
        };
        rows.iter()
            .map(newest)
            .collect::<Option<_>>()
            .context("a row has drawn no token")
    }

    /// Draws a token for each row, and stores the log-probabilities and top tokens that were asked
    /// for.
    fn draw(
        &mut self,
        sampling: &SamplingParams,
        Next { rows, logits, .. }: &Next,
    ) -> Result<Vec<Option<u32>>> {
        let number = |row: &usize| {
            if sampling.temperature == 0.0 {
                0.0
            } else {
                uniform(&mut self.rngs[*row])
            }
        };
        let numbers: Vec<f64> = rows.iter().map(number).collect();
        let Generation {
            logps,
            sampler_logps,
            top_k,
            ..
        } = *self.generation;
        let drawn = if !logps && sampling.can_draw_rows(logits)? {
            sampling.draw_rows(logits, &numbers, sampler_logps, &mut self.scratch)?
        } else {
            self.draw_each(sampling, rows, logits, &numbers)?
        };
        if sampler_logps {
            for (row, drawn) in rows.iter().zip(&drawn) {
                self.completions[*row]
                    .sampler_logps
                    .extend(drawn.map(|drawn| drawn.logp));
            }
        }
        if let (1.., Some(drawn)) = (top_k, drawn.iter().copied().collect::<Option<Vec<_>>>()) {
            let tops = sampling.tops(logits, top_k, &drawn)?;
            for (row, (ids, logps)) in rows.iter().zip(tops) {
                self.completions[*row].top_ids.extend(ids);
                self.completions[*row].top_logps.extend(logps);
            }
        }
        Ok(drawn
            .into_iter()
            .map(|drawn| drawn.map(|drawn| drawn.id))
            .collect())
    }

    /// Draws a token for each of `rows` from the logits in host memory.
    fn draw_each(
        &mut self,
        sampling: &SamplingParams,
        rows: &[usize],
        logits: &Tensor,
        numbers: &[f64],
    ) -> Result<Vec<Option<Drawn>>> {
        let Generation {
            logps,
            sampler_logps,
            ..
        } = *self.generation;
        let (vocab, logits) = (logits.dim(1)?, host(logits)?);
        let draw = |scratch: &mut Scratch, (number, logits): (&f64, &[f32])| {
            let drawn = sampling.draw(logits, *number, sampler_logps, scratch);
            let logp = |drawn: Drawn| logp(logits, drawn.id, sampling.temperature);
            (drawn, drawn.filter(|_| logps).map(logp))
        };
        let drawn: Vec<_> = numbers
            .par_iter()
            .zip(logits.par_chunks_exact(vocab))
            .map_init(Scratch::default, draw)
            .collect();
        for (row, (_, logp)) in rows.iter().zip(&drawn) {
            self.completions[*row].logps.extend(logp);
        }
        Ok(drawn.into_iter().map(|(drawn, _)| drawn).collect())
    }
}

/// `log_softmax(logits / temperature)[id]`, nats; temperature 0 counts as 1.
fn logp(logits: &[f32], id: u32, temperature: f64) -> f32 {
    let temperature = if temperature == 0.0 { 1.0 } else { temperature };
    let scaled = |logit: f32| f64::from(logit) / temperature;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|logit| (scaled(*logit) - scaled(largest)).exp())
        .sum();
    (scaled(logits[id as usize]) - scaled(largest) - sum.ln()) as f32
}
