//! One forward pass over whole sequences, and the gradients that follow from it.

use std::borrow::Cow;
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
use super::size::{self, Counts, Shape};

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

/// Bytes of the copies of weights that passes read.
#[derive(Default)]
pub(super) struct CopiedBytes {
    pub(super) all: u128,
    /// Bytes of the head's copy.
    pub(super) head: u128,
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
        let mut bytes = 0;
        for part in self.split(rows.rows(), MOST_ROWS) {
            let rows = rows.slice(part);
            let counts = Counts {
                inputs: self.packed(&rows).ids.len() as u128,
                tokens: rows.targets().count() as u128,
            };
            bytes += self.bytes_of_activations(counts);
        }
        bytes
    }

    /// Bytes of the activations that a pass over so many tokens stores.
    fn bytes_of_activations(&self, counts: Counts) -> u128 {
        let checkpointing = self.passes.gradient_checkpointing;
        size::activations(self.config(), counts, self.dtype(), checkpointing)
    }

    /// Number of tokens that run through the model in training passes over `rows`, with `at_once`
    /// rows in each pass; and the number if each distinct prompt ran once. The last token of a
    /// completion is not read.
    pub fn tokens_of_passes(&self, rows: &Sequences, at_once: usize) -> (usize, usize) {
        let mut computed = 0;
        for first in (0..rows.rows()).step_by(at_once) {
            let pass = rows.slice(first..(first + at_once).min(rows.rows()));
            for part in self.split(pass.rows(), MOST_ROWS) {
                computed += self.packed(&pass.slice(part)).ids.len();
            }
        }
        (computed, Packed::new(rows, true).ids.len())
    }

    /// Memory of a training pass over a micro-batch of `shape`: purposes and bytes. `several` is
    /// true if the batch has several micro-batches. `rejected` is true if the tokens that masks
    /// reject get gradients of their own.
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
        let activations = self.bytes_of_activations(shape.counts());
        let copied = self.copied_bytes();
        // Matrices below the head that are copies have gradients in bf16, which several
        // micro-batches add in f32.
        let smaller = if several || self.adapter().is_some() {
            0
        } else {
            copied.all.saturating_sub(copied.head)
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
            ("copies of the weights in bf16", copied.all),
        ]
    }

    /// Bytes of the copies in bf16 that passes on a GPU read. An embedding that is not also the
    /// head is not copied.
    pub(super) fn copied_bytes(&self) -> CopiedBytes {
        if self.device().is_cpu() || self.dtype() != DType::BF16 {
            return CopiedBytes::default();
        }
        let Config {
            vocab_size,
            hidden_size,
            tie_word_embeddings,
            ..
        } = *self.config();
        let table = vocab_size * hidden_size;
        let not_copied = if tie_word_embeddings { 0 } else { table };
        let factors = self.adapter().map_or(0, |one| one.params().element_count());
        let all = self.weights().element_count() - not_copied + factors;
        let bytes = DType::BF16.size_in_bytes();
        CopiedBytes {
            all: (all * bytes) as u128,
            head: (table * bytes) as u128,
        }
    }

    fn run(&self, rows: &Sequences, loss_temperature: f64, with_tape: bool) -> Result<Forward> {
        rows.check(self.config().vocab_size)?;
        ensure!(
            loss_temperature.is_finite() && loss_temperature > 0.0,
            "the loss temperature is {loss_temperature}, expected more than 0 \
             (correct the configuration)"
        );
        let ranges = self.split(rows.rows(), MOST_ROWS);
        let parts = side_by_side(ranges, |range| {
            Part::new(self, &rows.slice(range), loss_temperature, with_tape)
        })?;
        Ok(Forward::new(parts, rows.completion_len))
    }

    /// The tokens of `rows`. Rows share an equal prompt, unless dropout makes them differ.
    fn packed(&self, rows: &Sequences) -> Packed {
        Packed::new(rows, self.dropout().is_none())
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
        let config = policy.config();
        let device = policy.device();
        let packed = policy.packed(rows);
        let mut model = policy.decoder()?;
        if let Some(dropout) = policy.dropout() {
            let rows = packed.numbered(&rows.numbers);
            model.drop_out(dropout, policy.dropout_rate(), &rows);
        }
        let tokens = packed.on(config, device)?;
        let mut layers = Vec::new();
        let x = model.residual(&tokens, |_, saved| {
            if with_tape {
                layers.push(if policy.passes.gradient_checkpointing {
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
            truncation: policy.passes.truncation,
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
        let device = self.hidden.device();
        let d_logps = Tensor::new(self.rows.without_padding(&cotangents.logps), device)?;
        let d_entropy = match cotangents.entropy {
            Some(values) => Some(Tensor::new(self.rows.without_padding(values), device)?),
            None => None,
        };
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

    /// A part with only the rows `rows`, and copies of their activations.
    fn of(&self, rows: &[usize]) -> Result<Self> {
        let own = Arc::new(self.rows.select(rows));
        let chosen = Tensor::new(self.rows.tokens_in(rows), self.hidden.device())?;
        let tape = match &self.tape {
            Some(tape) => Some(tape.of(rows, &own, &chosen)?),
            None => None,
        };
        Ok(Self {
            hidden: self.hidden.index_select(&chosen, 0)?,
            targets: self.targets.index_select(&chosen, 0)?,
            tape,
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
        let mut sum = 0;
        for part in &self.parts {
            for tensor in [&part.hidden, &part.targets] {
                sum += tensor.elem_count() * tensor.dtype().size_in_bytes();
            }
            sum += part.tape.as_ref().map_or(0, Tape::bytes);
        }
        sum
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
        let d_entropy = d_entropy.map(|values| self.split(values)).transpose()?;
        let mut parts = Vec::new();
        for (number, part) in self.parts.into_iter().enumerate() {
            let cotangents = Cotangents {
                logps: Cow::Borrowed(d_logps[number]),
                entropy: d_entropy.as_ref().map(|values| values[number]),
            };
            parts.push((part, cotangents));
        }
        add_all(parts, sum)
    }

    /// The gradients when `d_logps` is 0 in most rows: only the other rows run the backward pass.
    /// `None` if every row is 0.
    ///
    /// Where only some rows of a part run, their activations are copied.
    pub fn backward_of_nonzero(&self, d_logps: &[f32]) -> Result<Option<Gradients>> {
        let mut parts = Vec::new();
        for (part, all) in self.parts.iter().zip(self.split(d_logps)?) {
            let (rows, own) = nonzero_rows(all, self.tokens);
            let part = if own.len() == all.len() {
                part.clone()
            } else if rows.is_empty() {
                continue;
            } else {
                part.of(&rows)?
            };
            let cotangents = Cotangents {
                logps: own.into(),
                entropy: None,
            };
            parts.push((part, cotangents));
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
        let mut split = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let (own, others) = rest.split_at(part.count());
            split.push(own);
            rest = others;
        }
        Ok(split)
    }
}

/// Indices of the rows that have a value other than 0, and the values of these rows. A row has
/// `tokens` values.
fn nonzero_rows(values: &[f32], tokens: usize) -> (Vec<usize>, Vec<f32>) {
    let mut rows = Vec::new();
    let mut kept = Vec::new();
    for (row, values) in values.chunks(tokens).enumerate() {
        if values.iter().any(|&value| value != 0.0) {
            rows.push(row);
            kept.extend_from_slice(values);
        }
    }
    (rows, kept)
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
