//! One forward pass over whole sequences, and the gradients that follow from it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};

use super::backward::{Stored, Tape};
use super::config::Config;
use super::gradients::Gradients;
use super::ops::{self, TokenCotangents, Truncation};
use super::packed::Packed;
use super::parallel::{on_all_threads, side_by_side};
use super::policy::Policy;
use super::sequences::Sequences;
use super::size::{self, Shape};

/// Most rows in one part of a forward pass.
const MOST_ROWS: usize = 32;

/// One forward pass over `[B, T]` completion tokens, with or without the activations for a backward
/// pass.
#[derive(Clone)]
pub struct Forward {
    /// Parts of the pass; each covers consecutive rows of the batch.
    pub(super) parts: Vec<Part>,
    tokens: usize,
}

/// The forward pass of some rows, with K completion tokens. Clones share its tensors.
#[derive(Clone)]
pub(super) struct Part {
    /// Features from which the tokens' logits are computed, `[K, D]`, in the policy's dtype.
    pub(super) hidden: Tensor,
    /// Head, `[V, D]`, f32.
    pub(super) head: Tensor,
    /// Completion ids, `[K]` u32.
    pub(super) targets: Tensor,
    rows: Arc<Sequences>,
    pub(super) loss_temperature: f64,
    pub(super) truncation: Option<Truncation>,
    tape: Option<Tape>,
}

impl Policy {
    /// The forward pass for training; `loss_temperature` divides the logits.
    ///
    /// It stores every activation, or with `with_gradient_checkpointing` only the input of each
    /// layer. The weights must not change before the backward pass.
    pub fn forward(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, true)
    }

    /// The forward pass without stored activations, for outputs alone.
    pub fn forward_detached(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, false)
    }

    /// Bytes of the activations that [`Policy::forward`] stores for these rows.
    pub fn activation_bytes(&self, rows: &Sequences) -> u128 {
        let parts = self
            .split(rows.rows(), MOST_ROWS)
            .into_iter()
            .map(|part| rows.slice(part));
        let bytes = |rows: Sequences| {
            let counts = (
                self.packed(&rows).ids.len() as u128,
                rows.targets().count() as u128,
            );
            size::activations(
                self.config(),
                counts,
                self.dtype(),
                self.gradient_checkpointing,
            )
        };
        parts.map(bytes).sum()
    }

    /// Number of tokens that training passes over `rows` run through the model, `at_once` rows in
    /// each, and the least number: each prompt once. The last token of a completion is not read.
    pub fn tokens_of_passes(&self, rows: &Sequences, at_once: usize) -> (usize, usize) {
        let passes = (0..rows.rows())
            .step_by(at_once)
            .map(|first| rows.slice(first..(first + at_once).min(rows.rows())));
        let parts = passes.flat_map(|rows| {
            self.split(rows.rows(), MOST_ROWS)
                .into_iter()
                .map(move |part| rows.slice(part))
        });
        let computed = parts.map(|rows| self.packed(&rows).ids.len()).sum();
        (computed, Packed::new(rows, true).ids.len())
    }

    /// Memory of a training pass over a micro-batch of `shape`: purposes and bytes. `several`: the
    /// batch has several micro-batches. `rejected`: tokens that masks reject get gradients of their
    /// own.
    pub fn training_bytes(
        &self,
        shape: Shape,
        several: bool,
        rejected: bool,
    ) -> [(&'static str, u128); 4] {
        let parts = self.split(shape.rows, MOST_ROWS).len();
        // A single part adds its gradients to the sum; several parts first collect their own.
        let own = if parts > 1 {
            parts + usize::from(several)
        } else {
            1
        };
        let sets = own + usize::from(rejected);
        let activations = size::activations(
            self.config(),
            shape.counts(),
            self.dtype(),
            self.gradient_checkpointing,
        );
        let (copies, head) = self.copied_bytes();
        // Matrices below the head that are copies have gradients in bf16, which several
        // micro-batches add in f32.
        let smaller = if several || self.adapter().is_some() {
            0
        } else {
            copies.saturating_sub(head)
        };
        let gradients = self.params().element_count() as u128 * size::BYTES - smaller;
        [
            ("gradients", sets as u128 * gradients),
            ("activations", activations),
            (
                "a layer and its logits at work",
                size::at_work(
                    self.config(),
                    shape,
                    self.adapter().is_none(),
                    parts,
                    self.device(),
                ),
            ),
            ("copies of the weights in bf16", copies),
        ]
    }

    /// Bytes of the copies in bf16 that passes on a GPU read, and those of the head among them. An
    /// embedding of its own has none.
    pub(super) fn copied_bytes(&self) -> (u128, u128) {
        if self.device().is_cpu() || self.dtype() != DType::BF16 {
            return (0, 0);
        }
        let Config {
            vocab_size,
            hidden_size,
            tie_word_embeddings,
            ..
        } = *self.config();
        let (table, factors) = (
            vocab_size * hidden_size,
            self.adapter().map_or(0, |one| one.params().element_count()),
        );
        let alone = if tie_word_embeddings { 0 } else { table };
        let bytes = |count: usize| (count * DType::BF16.size_in_bytes()) as u128;
        (
            bytes(self.weights().element_count() - alone + factors),
            bytes(table),
        )
    }

    fn run(&self, rows: &Sequences, loss_temperature: f64, with_tape: bool) -> Result<Forward> {
        rows.check(self.config().vocab_size)?;
        ensure!(
            loss_temperature.is_finite() && loss_temperature > 0.0,
            "the loss temperature is {loss_temperature}, expected more than 0 (correct the configuration)"
        );
        let parts = self.split(rows.rows(), MOST_ROWS);
        let part =
            |range: Range<usize>| Part::new(self, &rows.slice(range), loss_temperature, with_tape);
        Ok(Forward::new(
            side_by_side(parts, part)?,
            rows.completion_len,
        ))
    }

    /// The tokens of `rows`. Under dropout, rows with the same prompt differ, so each has a prompt
    /// of its own.
    fn packed(&self, rows: &Sequences) -> Packed {
        Packed::new(rows, self.drops().is_none())
    }
}

impl Part {
    /// Runs the model. Activations are stored for the backward pass if `with_tape` is true.
    pub(super) fn new(
        policy: &Policy,
        rows: &Sequences,
        loss_temperature: f64,
        with_tape: bool,
    ) -> Result<Self> {
        let (config, device) = (policy.config(), policy.device());
        let packed = policy.packed(rows);
        let model = policy
            .decoder()?
            .for_rows(policy.drops(), &packed.numbered(&rows.numbers));
        let tokens = packed.on(config, device)?;
        let mut layers = Vec::new();
        let x = model.residual(&tokens, |_, saved| {
            if with_tape {
                layers.push(if policy.gradient_checkpointing {
                    Stored::Input(saved.x)
                } else {
                    Stored::All(saved)
                });
            }
            Ok(())
        })?;
        let last = x.index_select(&Tensor::new(packed.before(), device)?, 0)?;
        Ok(Self {
            hidden: model.features(&last)?,
            head: model.head.weight.clone(),
            targets: Tensor::new(rows.targets().collect::<Vec<_>>(), device)?,
            rows: Arc::new(rows.clone()),
            loss_temperature,
            truncation: policy.truncation,
            tape: with_tape.then(|| Tape {
                model: Arc::new(model),
                packed: Arc::new(packed),
                tokens,
                layers,
                last,
                tied: config.tie_word_embeddings,
                padding: config.padding(),
            }),
        })
    }

    /// Number of completion tokens with their padding, `rows * T`.
    fn count(&self) -> usize {
        self.rows.rows() * self.rows.completion_len
    }

    /// The rows `[rows * T, ..]` of a tensor of the completion tokens, `[K, ..]`. Padding repeats
    /// its row's last token.
    pub(super) fn padded(&self, of_tokens: &Tensor) -> Result<Tensor> {
        if self.count() == of_tokens.dim(0)? {
            return Ok(of_tokens.clone());
        }
        Ok(of_tokens.index_select(&Tensor::new(self.rows.places(), of_tokens.device())?, 0)?)
    }

    /// Adds the gradients of a loss to `sum`; `cotangents` are its derivatives by this part's
    /// outputs.
    fn backward(self, cotangents: &Cotangents<'_>, sum: &mut Gradients) -> Result<()> {
        let tape = self
            .tape
            .context("this forward pass kept no activations (call `forward`)")?;
        let tensor =
            |values: &[f32]| Tensor::new(self.rows.without_padding(values), self.hidden.device());
        let (d_logps, d_entropy) = (
            tensor(&cotangents.logps)?,
            cotangents.entropy.map(tensor).transpose()?,
        );
        let loss = TokenCotangents {
            targets: &self.targets,
            d_logps: &d_logps,
            d_entropy: d_entropy.as_ref(),
            temperature: self.loss_temperature,
            truncation: self.truncation,
        };
        let hidden = ops::for_logits(&self.hidden)?;
        if tape.model.frozen {
            let d_hidden = ops::token_logps_by_hidden(&hidden, &self.head, &loss)?;
            return tape.backward(&d_hidden, None, sum);
        }
        let (d_hidden, d_head) = ops::token_logps_vjp(&hidden, &self.head, &loss)?;
        tape.backward(&d_hidden, Some(d_head), sum)
    }

    /// A part with the rows `rows` alone, and copies of their activations.
    fn of(&self, rows: &[usize]) -> Result<Self> {
        let own = Arc::new(self.rows.select(rows));
        let chosen = Tensor::new(self.rows.tokens_in(rows), self.hidden.device())?;
        let tape = |tape: &Tape| tape.of(rows, &own, &chosen);
        Ok(Self {
            hidden: self.hidden.index_select(&chosen, 0)?,
            targets: self.targets.index_select(&chosen, 0)?,
            tape: self.tape.as_ref().map(tape).transpose()?,
            rows: own,
            head: self.head.clone(),
            ..*self
        })
    }
}

/// Derivatives of a loss by the outputs of a part's tokens and their padding, `[rows * T]` each.
struct Cotangents<'a> {
    logps: Cow<'a, [f32]>,
    entropy: Option<&'a [f32]>,
}

impl Forward {
    pub(super) fn new(parts: Vec<Part>, tokens: usize) -> Self {
        Self { parts, tokens }
    }

    /// Bytes of all stored tensors.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let of_part = |part: &Part| {
            bytes(&part.hidden) + bytes(&part.targets) + part.tape.as_ref().map_or(0, Tape::bytes)
        };
        self.parts.iter().map(of_part).sum()
    }

    /// Numbers of rows and completion tokens, B and T.
    pub fn dims(&self) -> (usize, usize) {
        (self.count() / self.tokens, self.tokens)
    }

    fn count(&self) -> usize {
        self.parts.iter().map(Part::count).sum()
    }

    /// Features from which the tokens' logits are computed, `[B * T, D]`.
    pub fn hidden(&self) -> Result<Tensor> {
        let parts: Vec<Tensor> = self
            .parts
            .iter()
            .map(|part| part.padded(&part.hidden))
            .collect::<Result<_>>()?;
        Ok(Tensor::cat(&parts, 0)?)
    }

    /// The gradients of a loss whose derivative by the log-probabilities is `d_logps`, `[B, T]`.
    ///
    /// A detached forward pass, or another number of derivatives, is an error.
    pub fn backward(&self, d_logps: &[f32]) -> Result<Gradients> {
        let mut sum = Gradients::default();
        self.clone().finish(d_logps, None, &mut sum)?;
        Ok(sum)
    }

    /// Adds the gradients of a loss to `sum`, which is empty or has every gradient. Activations are
    /// freed as they are used.
    ///
    /// `d_logps`, `[B, T]`, is the derivative by the log-probabilities. `d_entropy`, `[B, T]`, is
    /// the derivative by the tokens' entropies, if the loss depends on them.
    pub fn finish(
        self,
        d_logps: &[f32],
        d_entropy: Option<&[f32]>,
        sum: &mut Gradients,
    ) -> Result<()> {
        let d_logps = self.split(d_logps)?;
        let d_entropies = match d_entropy {
            None => vec![None; d_logps.len()],
            Some(d_entropy) => self.split(d_entropy)?.into_iter().map(Some).collect(),
        };
        let cotangents = d_logps.into_iter().zip(d_entropies);
        let cotangents = cotangents.map(|(logps, entropy)| Cotangents {
            logps: Cow::Borrowed(logps),
            entropy,
        });
        add_all(self.parts.into_iter().zip(cotangents).collect(), sum)
    }

    /// The gradients when `d_logps` is 0 in most rows: only the other rows run the backward pass.
    /// `None` if every row is 0.
    ///
    /// If rows of 0 stand between the other rows, the activations of those other rows are copied.
    pub fn backward_of_nonzero(&self, d_logps: &[f32]) -> Result<Option<Gradients>> {
        let mut parts = Vec::new();
        for (part, all) in self.parts.iter().zip(self.split(d_logps)?) {
            let (rows, own) = nonzero_rows(all, self.tokens);
            let (whole, cotangents) = (
                own.len() == all.len(),
                Cotangents {
                    logps: own.into(),
                    entropy: None,
                },
            );
            if whole {
                parts.push((part.clone(), cotangents));
            } else if !rows.is_empty() {
                parts.push((part.of(&rows)?, cotangents));
            }
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let mut sum = Gradients::default();
        add_all(parts, &mut sum)?;
        Ok(Some(sum))
    }

    /// Splits `values`, `[B, T]`, into the values of each part.
    fn split<'a>(&self, values: &'a [f32]) -> Result<Vec<&'a [f32]>> {
        let count = self.count();
        ensure!(
            values.len() == count,
            "{} derivatives for {count} tokens",
            values.len()
        );
        let mut rest = values;
        let own = |part: &Part| {
            let (own, others) = rest.split_at(part.count());
            rest = others;
            own
        };
        Ok(self.parts.iter().map(own).collect())
    }
}

/// Indices of the rows (of `tokens` values each) that are not all 0, and the values of these rows.
fn nonzero_rows(values: &[f32], tokens: usize) -> (Vec<usize>, Vec<f32>) {
    let rows = values
        .chunks(tokens)
        .enumerate()
        .filter(|(_, row)| row.iter().any(|&value| value != 0.0));
    let (rows, values): (Vec<usize>, Vec<&[f32]>) = rows.unzip();
    (rows, values.concat())
}

/// Adds the gradients of all parts to `sum`. The parts' gradients are first added to each other, in
/// order.
fn add_all(mut parts: Vec<(Part, Cotangents<'_>)>, sum: &mut Gradients) -> Result<()> {
    if parts.len() == 1
        && let Some((part, cotangents)) = parts.pop()
    {
        return on_all_threads(|| part.backward(&cotangents, sum));
    }
    let gradients = side_by_side(parts, |(part, cotangents)| {
        let mut own = Gradients::default();
        part.backward(&cotangents, &mut own)?;
        Ok(own)
    })?;
    let mut gradients = gradients.into_iter();
    let mut all = gradients
        .next()
        .context("a forward pass has at least one part")?;
    gradients.try_for_each(|own| all.accumulate(own))?;
    sum.accumulate(all)
}

/// The values of a tensor on the host, row-major, as f32.
pub(super) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
}
