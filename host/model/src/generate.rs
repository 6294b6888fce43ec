//! Sampling of completions with a KV cache.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use host_rng::uniform;
use rand::Rng;
use rayon::prelude::*;

use super::captured::{Capture, Captured, DrawnToken};
use super::decoder::Decoder;
use super::forward::host;
use super::narrowed;
use super::outputs::TokenOutputs;
use super::parallel::side_by_side;
use super::partner::{Partner, Reply, SampledTokens};
use super::policy::Policy;
use super::sampling::{Drawn, SamplingParams, Scratch};
use super::size::{self, Shape};
use super::slots::{Limits, NewToken, Next, Slots, check_prompts};

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
    /// Longest turn of a conversation, tokens; 0 is no limit.
    pub max_turn_length: usize,
    /// Ids that end a turn of a conversation, or a completion without a partner; may be empty.
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
    /// A row's completion does not depend on the other rows. On a CPU its logits stay the same bit
    /// by bit; on a GPU they may differ by rounding.
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
    /// it also returns the outputs of the drawn tokens, `[B, T]`.
    ///
    /// With `partners` a completion is a conversation. `partners` is called with a range of rows,
    /// and returns the partner that answers these rows' turns. The partner numbers the rows from 0.
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
        let most_rows = generation.max_num_seqs.div_ceil(ranges.len());
        let mut parts = Vec::new();
        let mut rest = rngs;
        for rows in ranges {
            let (rngs, others) = rest.split_at_mut(rows.len());
            rest = others;
            parts.push(Part {
                prompts: &prompts[rows.clone()],
                rngs,
                first_row: rows.start,
                most_rows,
                capture,
                partner: partners.map(|of| of(rows)),
            });
        }
        let model = self.sampler()?;
        let parts = side_by_side(parts, |part| {
            Sampler::new(self, &model, generation, part)?.run(|_| Ok(()))
        })?;
        joined(parts)
    }

    /// Samples one completion as [`Policy::generate`] does, and reports each token when it is
    /// drawn.
    pub fn stream<R: Rng>(
        &self,
        prompt: &[u32],
        generation: &Generation,
        rng: R,
        mut report: impl FnMut(u32) -> Result<()>,
    ) -> Result<SampledTokens> {
        generation.check()?;
        let prompts = [prompt.to_vec()];
        check_prompts(&prompts, self.config().vocab_size)?;
        let model = self.sampler()?;
        let part = Part {
            prompts: &prompts,
            rngs: &mut [rng],
            first_row: 0,
            most_rows: 0,
            capture: None,
            partner: None,
        };
        let sampled = Sampler::new(self, &model, generation, part)?
            .run(|completions| completions[0].ids.last().map_or(Ok(()), |id| report(*id)))?;
        sampled
            .completions
            .into_iter()
            .next()
            .context("a prompt has a completion")
    }

    /// Memory that sampling of `shape` takes: purposes and bytes.
    pub fn sampling_bytes(&self, shape: Shape) -> [(&'static str, u128); 3] {
        let weights = self.weights().element_count() as u128;
        let copied = if self.is_packed() {
            size::BYTES * weights
        } else if self.is_rounded() {
            DType::BF16.size_in_bytes() as u128 * weights
        } else {
            self.copied_bytes().all
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

    /// The model in the form that sampling reads.
    fn sampler(&self) -> Result<Decoder> {
        let model = self.decoder()?;
        if self.is_packed() {
            model.pack()
        } else {
            model.stream()
        }
    }
}

/// The prompts that one thread completes.
struct Part<'a, R> {
    prompts: &'a [Vec<u32>],
    /// A random stream for each prompt.
    rngs: &'a mut [R],
    /// Number of the first prompt in the whole batch.
    first_row: usize,
    /// Most rows that are sampled at once; 0 is no limit.
    most_rows: usize,
    capture: Option<Capture>,
    partner: Option<Box<dyn Partner>>,
}

/// The completions of a [`Part`], and their outputs if they were captured.
struct Sampled {
    completions: Vec<SampledTokens>,
    captured: Option<Captured>,
}

/// The completions and the outputs of all parts, in order. Rows of the outputs have the length of
/// the longest completion.
fn joined(parts: Vec<Sampled>) -> Result<(Vec<SampledTokens>, Option<TokenOutputs>)> {
    let lengths = parts
        .iter()
        .flat_map(|part| &part.completions)
        .map(|completion| completion.ids.len());
    let longest = lengths.max().unwrap_or(0);
    let mut completions = Vec::new();
    let mut outputs = Vec::new();
    for part in parts {
        if let Some(captured) = part.captured {
            outputs.push(captured.finish(part.completions.len(), longest)?);
        }
        completions.extend(part.completions);
    }
    if outputs.is_empty() {
        return Ok((completions, None));
    }
    Ok((completions, Some(TokenOutputs::join(outputs)?)))
}

/// Samples the completions of one [`Part`].
struct Sampler<'a, R> {
    slots: Slots<'a>,
    batch: Batch<'a, R>,
    partner: Option<Box<dyn Partner>>,
    captured: Option<Captured>,
}

/// What a sampler does after it has heard its partner.
enum Phase {
    /// Rows have run through the model, and each of them draws a token.
    Draw(Next),
    /// All rows that have not ended wait for replies.
    Wait,
    /// All rows have ended.
    End,
}

impl<'a, R: Rng> Sampler<'a, R> {
    fn new(
        policy: &'a Policy,
        model: &'a Decoder,
        generation: &'a Generation,
        part: Part<'a, R>,
    ) -> Result<Self> {
        let limits = Limits {
            rows: part.most_rows,
            completion: generation.max_completion_length,
            any_order: part.partner.is_some(),
        };
        Ok(Self {
            slots: Slots::new(policy, model, part.prompts, limits)?,
            batch: Batch::new(generation, part.rngs, part.first_row),
            partner: part.partner,
            captured: part.capture.map(Captured::new),
        })
    }

    /// Samples until all rows have ended. `after` receives the completions so far whenever some
    /// rows have a new token.
    fn run(mut self, mut after: impl FnMut(&[SampledTokens]) -> Result<()>) -> Result<Sampled> {
        loop {
            self.hear_partner()?;
            match self.advance()? {
                Phase::Draw(next) => {
                    self.draw(&next)?;
                    after(&self.batch.completions)?;
                }
                Phase::Wait => {}
                Phase::End => {
                    return Ok(Sampled {
                        completions: self.batch.completions,
                        captured: self.captured,
                    });
                }
            }
        }
    }

    /// Adds the replies that have come to the rows that wait for them. If nothing else is left to
    /// do, waits for a reply.
    fn hear_partner(&mut self) -> Result<()> {
        let Some(partner) = &mut self.partner else {
            return Ok(());
        };
        if self.batch.waiting == 0 {
            return Ok(());
        }
        let idle = self.batch.new.is_empty() && !self.slots.can_admit();
        let ended = self.batch.hear(partner.replies(idle)?);
        self.release(ended);
        Ok(())
    }

    /// Runs the prompts of waiting rows through the model, or the newest tokens of the others.
    fn advance(&mut self) -> Result<Phase> {
        let idle = self.batch.new.is_empty();
        if let Some(admitted) = self.slots.admit(idle)? {
            return Ok(Phase::Draw(admitted));
        }
        if !idle {
            let new = std::mem::take(&mut self.batch.new);
            return Ok(Phase::Draw(self.slots.append(&new)?));
        }
        Ok(if self.batch.waiting > 0 {
            Phase::Wait
        } else {
            Phase::End
        })
    }

    /// Draws a token for each row of `next`. A row whose turn has ended is told to the partner, or
    /// has ended if there is none.
    fn draw(&mut self, next: &Next) -> Result<()> {
        let ended = self.batch.take(next)?;
        match &mut self.partner {
            Some(partner) => {
                self.batch.waiting += ended.len();
                for row in ended {
                    partner.listen(row, &self.batch.completions[row])?;
                }
            }
            None => self.release(ended),
        }
        if let Some(captured) = &mut self.captured {
            captured.take(next, &self.batch.newest(&next.rows)?)?;
        }
        Ok(())
    }

    /// Frees the slots of rows that have ended.
    fn release(&mut self, ended: Vec<usize>) {
        SAMPLED.fetch_add(ended.len(), Ordering::Relaxed);
        for row in ended {
            self.slots.release(row);
        }
    }
}

/// The completions of some rows while they grow.
struct Batch<'a, R> {
    generation: &'a Generation,
    rngs: &'a mut [R],
    completions: Vec<SampledTokens>,
    /// Tokens that have not run through the model: the newest token of each row whose turn goes on,
    /// followed by its partner's reply if there is one.
    new: Vec<NewToken>,
    /// Number of rows that wait for a partner's reply.
    waiting: usize,
    scratch: Scratch,
    /// Number of the first row in the whole batch, for messages.
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

    /// Adds a partner's replies, and returns the rows that have ended: those whose partner says so,
    /// and those whose reply leaves no room for another token.
    fn hear(&mut self, replies: Vec<Reply>) -> Vec<usize> {
        self.waiting -= replies.len();
        let mut ended = Vec::new();
        for Reply { row, ids } in replies {
            let length = self.completions[row].ids.len();
            match ids {
                Some(ids) if length + ids.len() < self.generation.max_completion_length => {
                    self.append_reply(row, &ids);
                }
                _ => ended.push(row),
            }
        }
        ended
    }

    /// Appends the partner's `reply` to `row`. The positions of its tokens in lists of
    /// log-probabilities and top tokens hold zeros.
    fn append_reply(&mut self, row: usize, reply: &[u32]) {
        let completion = &mut self.completions[row];
        // The last token of the turn has not run through the model yet.
        let unread = completion.ids.last().into_iter().chain(reply);
        self.new.extend(unread.map(|&id| NewToken { row, id }));
        let from = completion.ids.len();
        completion.ids.extend(reply);
        let length = completion.ids.len();
        completion.added.push(from..length);
        let Generation {
            logps,
            sampler_logps,
            top_k,
            ..
        } = *self.generation;
        completion.logps.resize(length * usize::from(logps), 0.0);
        completion
            .sampler_logps
            .resize(length * usize::from(sampler_logps), 0.0);
        completion.top_logps.resize(length * top_k, 0.0);
        completion.top_ids.resize(length * top_k, 0);
    }

    /// Draws a token for each row of `next`, and returns the rows whose turns have ended.
    fn take(&mut self, next: &Next) -> Result<Vec<usize>> {
        let ids = self.draw(next)?;
        let Generation {
            max_completion_length,
            max_turn_length,
            eos_ids,
            ..
        } = self.generation;
        let mut ended = Vec::new();
        for (&row, id) in next.rows.iter().zip(ids) {
            let completion = &mut self.completions[row];
            let id = id.context(NOT_FINITE).with_context(|| {
                format!(
                    "cannot sample token {} of completion {}",
                    completion.ids.len() + 1,
                    self.first_row + row
                )
            })?;
            completion.ids.push(id);
            let length = completion.ids.len();
            let turn_start = completion.added.last().map_or(0, |added| added.end);
            let is_end = eos_ids.contains(&id);
            completion.truncated = length == *max_completion_length && !is_end;
            if is_end || completion.truncated || length - turn_start == *max_turn_length {
                ended.push(row);
            } else {
                self.new.push(NewToken { row, id });
            }
        }
        Ok(ended)
    }

    /// The newest token of each of `rows`.
    fn newest(&self, rows: &[usize]) -> Result<Vec<DrawnToken>> {
        let mut newest = Vec::with_capacity(rows.len());
        for row in rows {
            let ids = &self.completions[*row].ids;
            newest.push(DrawnToken {
                id: *ids.last().context("a row has drawn no token")?,
                index: ids.len() - 1,
            });
        }
        Ok(newest)
    }

    /// Draws a token for each row, and stores the log-probabilities and top tokens that were asked
    /// for. A row with a logit that is not finite has no token.
    fn draw(&mut self, Next { rows, logits, .. }: &Next) -> Result<Vec<Option<u32>>> {
        let Generation {
            sampling,
            logps,
            sampler_logps,
            top_k,
            ..
        } = self.generation;
        let numbers: Vec<f64> = rows.iter().map(|row| self.number(*row)).collect();
        let drawn = if !logps && sampling.can_draw_rows(logits)? {
            sampling.draw_rows(logits, &numbers, *sampler_logps, &mut self.scratch)?
        } else {
            self.draw_each(rows, logits, &numbers)?
        };
        if *sampler_logps {
            for (row, drawn) in rows.iter().zip(&drawn) {
                self.completions[*row]
                    .sampler_logps
                    .extend(drawn.map(|drawn| drawn.logp));
            }
        }
        if *top_k > 0
            && let Some(drawn) = drawn.iter().copied().collect::<Option<Vec<_>>>()
        {
            let tops = sampling.tops(logits, *top_k, &drawn)?;
            for (row, top) in rows.iter().zip(tops) {
                self.completions[*row].top_ids.extend(top.ids);
                self.completions[*row].top_logps.extend(top.logps);
            }
        }
        Ok(drawn
            .into_iter()
            .map(|drawn| drawn.map(|drawn| drawn.id))
            .collect())
    }

    /// The random number with which `row` draws its next token; greedy sampling takes none.
    fn number(&mut self, row: usize) -> f64 {
        if self.generation.sampling.temperature == 0.0 {
            return 0.0;
        }
        uniform(&mut self.rngs[row])
    }

    /// Draws a token for each of `rows` from the logits in host memory.
    fn draw_each(
        &mut self,
        rows: &[usize],
        logits: &Tensor,
        numbers: &[f64],
    ) -> Result<Vec<Option<Drawn>>> {
        let Generation {
            sampling,
            logps,
            sampler_logps,
            ..
        } = self.generation;
        let vocab = logits.dim(1)?;
        let logits = host(logits)?;
        let drawn: Vec<_> = numbers
            .par_iter()
            .zip(logits.par_chunks_exact(vocab))
            .map_init(Scratch::default, |scratch, (number, logits)| {
                let drawn = sampling.draw(logits, *number, *sampler_logps, scratch);
                let asked = drawn.filter(|_| *logps);
                let logp = asked.map(|drawn| logp(logits, drawn.id, sampling.temperature));
                (drawn, logp)
            })
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
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = f64::from(largest) / temperature;
    let sum: f64 = logits
        .iter()
        .map(|logit| (f64::from(*logit) / temperature - largest).exp())
        .sum();
    (f64::from(logits[id as usize]) / temperature - largest - sum.ln()) as f32
}
