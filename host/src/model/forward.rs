//! One forward pass over whole sequences, and the gradients that follow from it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};

use super::backward::{Stored, Tape};
use super::decoder::{Decoder, rope};
use super::gradients::Gradients;
use super::ops::{self, TokenCotangents, Truncation};
use super::parallel::side_by_side;
use super::policy::Policy;
use super::sequences::Sequences;
use super::size::{self, Shape};

/// Most rows of one part of a forward pass.
const MOST_ROWS: usize = 32;

/// One forward pass over `[B, T]` completion tokens, with or without what the backward pass needs.
pub struct Forward {
    /// Consecutive rows of the batch.
    pub(super) parts: Vec<Part>,
    tokens: usize,
}

/// The forward pass of some rows; a clone shares what it has.
#[derive(Clone)]
pub(super) struct Part {
    /// Features that produced the logits of the tokens, `[rows * T, D]`, in the policy's dtype.
    pub(super) hidden: Tensor,
    /// `[V, D]`, f32.
    pub(super) head: Tensor,
    /// Completion ids, `[rows * T]` u32.
    pub(super) targets: Tensor,
    pub(super) loss_temperature: f64,
    pub(super) truncation: Option<Truncation>,
    tape: Option<Tape>,
}

impl Policy {
    /// The forward pass for training; `loss_temperature` divides the logits.
    ///
    /// It stores every activation, or with `with_gradient_checkpointing` what each layer starts from; the weights must not change before its
    /// backward pass.
    pub fn forward(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, true)
    }

    /// The forward pass for outputs alone.
    pub fn forward_detached(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, false)
    }

    /// Bytes of what [`Policy::forward`] stores of these rows.
    pub fn activation_bytes(&self, rows: &Sequences) -> u128 {
        let shape = Shape { rows: rows.rows(), prompt: rows.prompt_len, tokens: rows.completion_len };
        size::activations(self.config(), shape, self.dtype(), self.checkpoints_gradients())
    }

    /// Bytes that a training pass over `shape`, a micro-batch that may be one of `several`, takes, by what they are for; `rejected` says whether
    /// what masks reject has gradients of its own.
    pub fn training_bytes(&self, shape: Shape, several: bool, rejected: bool) -> [(&'static str, u128); 3] {
        let parts = self.split(shape.rows, MOST_ROWS).len();
        // One part adds its gradients to the sum; several have their own first.
        let own = if parts > 1 { parts + usize::from(several) } else { 1 };
        let sets = own + usize::from(rejected);
        let activations = size::activations(self.config(), shape, self.dtype(), self.checkpoints_gradients());
        [
            ("gradients", (sets * self.params().element_count()) as u128 * size::BYTES),
            ("activations", activations),
            ("a layer and its logits at work", size::at_work(self.config(), shape, self.adapter().is_none(), parts)),
        ]
    }

    fn run(&self, rows: &Sequences, loss_temperature: f64, with_tape: bool) -> Result<Forward> {
        rows.check(self.config().vocab_size)?;
        ensure!(
            loss_temperature.is_finite() && loss_temperature > 0.0,
            "the loss temperature is {loss_temperature}, expected more than 0 (correct the configuration)"
        );
        let parts = self.split(rows.rows(), MOST_ROWS);
        let part = |range: Range<usize>| Part::new(self, &rows.slice(range), loss_temperature, with_tape);
        Ok(Forward::new(side_by_side(parts, part)?, rows.completion_len))
    }
}

impl Part {
    /// Runs the model; `with_tape` says whether activations are stored for the backward pass.
    pub(super) fn new(policy: &Policy, rows: &Sequences, loss_temperature: f64, with_tape: bool) -> Result<Self> {
        let (config, device) = (policy.config(), policy.device());
        let model = Decoder::for_rows(policy, &rows.numbers)?;
        let (prompt, tokens) = (rows.prompt_len, rows.completion_len);
        // The last token of a row produces no logits that anyone reads.
        let inputs = prompt + tokens - 1;
        let ids = Tensor::from_vec(rows.columns(0, inputs), (rows.rows(), inputs), device)?;
        let rope = rope(config, &rows.starts, inputs);
        let mut layers = Vec::new();
        let x = model.residual(&ids, &rope, |_, saved| {
            if with_tape {
                layers.push(if policy.checkpoints_gradients() { Stored::Input(saved.x) } else { Stored::All(saved) });
            }
            Ok(())
        })?;
        let last = x.narrow(1, prompt - 1, tokens)?.contiguous()?;
        let count = rows.rows() * tokens;
        Ok(Self {
            hidden: model.features(&last)?.reshape((count, config.hidden_size))?,
            head: model.head.clone(),
            targets: Tensor::from_vec(rows.columns(prompt, prompt + tokens), count, device)?,
            loss_temperature,
            truncation: policy.truncation(),
            tape: with_tape.then(|| Tape {
                model: Arc::new(model),
                ids,
                rope,
                layers,
                last,
                tied: config.tie_word_embeddings,
                padding: config.padding(),
            }),
        })
    }

    /// A part from another model's forward pass: features of some rows, with their head and their targets.
    pub(super) fn detached(hidden: Tensor, head: Tensor, targets: Tensor, loss_temperature: f64) -> Self {
        Self { hidden, head, targets, loss_temperature, truncation: None, tape: None }
    }

    /// Adds the gradients of a loss with these cotangents to `sum`.
    fn backward(self, cotangents: &Cotangents<'_>, sum: &mut Gradients) -> Result<()> {
        let tape = self.tape.context("this forward pass kept no activations (call `forward`)")?;
        let tensor = |values: &[f32]| Tensor::from_slice(values, values.len(), self.hidden.device());
        let (d_logps, d_entropy) = (tensor(&cotangents.logps)?, cotangents.entropy.map(tensor).transpose()?);
        let loss = TokenCotangents {
            targets: &self.targets,
            d_logps: &d_logps,
            d_entropy: d_entropy.as_ref(),
            temperature: self.loss_temperature,
            truncation: self.truncation,
        };
        let hidden = self.hidden.to_dtype(DType::F32)?;
        if tape.model.frozen {
            let d_hidden = ops::token_logps_by_hidden(&hidden, &self.head, &loss)?;
            return tape.backward(&d_hidden, None, sum);
        }
        let (d_hidden, d_head) = ops::token_logps_vjp(&hidden, &self.head, &loss)?;
        tape.backward(&d_hidden, Some(d_head), sum)
    }

    /// Those of `rows`, `[R]` u32, alone, where `tokens` is T; the activations are copied.
    fn of(&self, rows: Vec<u32>, tokens: usize) -> Result<Self> {
        let rows = Tensor::new(rows, self.hidden.device())?;
        let own = |tensor: &Tensor| -> Result<Tensor> {
            let by_row = tensor.reshape((tensor.dim(0)? / tokens, ()))?.index_select(&rows, 0)?;
            Ok(by_row.reshape([&[rows.elem_count() * tokens], &tensor.dims()[1..]].concat())?)
        };
        let tape = self.tape.as_ref().map(|tape| tape.of(&rows)).transpose()?;
        Ok(Self { hidden: own(&self.hidden)?, targets: own(&self.targets)?, tape, head: self.head.clone(), ..*self })
    }
}

/// The derivatives of a loss by what a part's tokens have, `[rows * T]` each.
struct Cotangents<'a> {
    /// By their log-probabilities.
    logps: Cow<'a, [f32]>,
    /// By the entropies of their distributions.
    entropy: Option<&'a [f32]>,
}

impl Forward {
    pub(super) fn new(parts: Vec<Part>, tokens: usize) -> Self {
        Self { parts, tokens }
    }

    /// Bytes of all that is stored.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let of_part =
            |part: &Part| bytes(&part.hidden) + bytes(&part.targets) + part.tape.as_ref().map_or(0, Tape::bytes);
        self.parts.iter().map(of_part).sum()
    }

    /// Rows and completion tokens, B and T.
    pub fn dims(&self) -> (usize, usize) {
        (self.count() / self.tokens, self.tokens)
    }

    fn count(&self) -> usize {
        self.parts.iter().map(|part| part.targets.elem_count()).sum()
    }

    /// The features that produced each token's logits, `[B * T, D]`.
    pub fn hidden(&self) -> Result<Tensor> {
        let parts: Vec<&Tensor> = self.parts.iter().map(|part| &part.hidden).collect();
        Ok(Tensor::cat(&parts, 0)?)
    }

    /// The gradients of a loss whose derivative by the log-probabilities is `d_logps`, `[B, T]`.
    ///
    /// A detached forward pass, or derivatives of another number, is an error.
    pub fn backward(&self, d_logps: &[f32]) -> Result<Gradients> {
        let mut sum = Gradients::default();
        Self { parts: self.parts.clone(), tokens: self.tokens }.finish(d_logps, None, &mut sum)?;
        Ok(sum)
    }

    /// Adds the gradients of a loss to `sum`, which is empty or has all gradients. Activations are freed as they are used.
    ///
    /// `d_logps`, `[B, T]`, is the derivative by the log-probabilities. `d_entropy`, `[B, T]`, is the one by the tokens' entropies, where
    /// the loss depends on them.
    pub fn finish(self, d_logps: &[f32], d_entropy: Option<&[f32]>, sum: &mut Gradients) -> Result<()> {
        let d_logps = self.split(d_logps)?;
        let d_entropies = match d_entropy {
            None => vec![None; d_logps.len()],
            Some(d_entropy) => self.split(d_entropy)?.into_iter().map(Some).collect(),
        };
        let cotangents = d_logps.into_iter().zip(d_entropies);
        let cotangents = cotangents.map(|(logps, entropy)| Cotangents { logps: Cow::Borrowed(logps), entropy });
        add_all(self.parts.into_iter().zip(cotangents).collect(), sum)
    }

    /// The gradients where `d_logps` is 0 in most rows: only the others are passed back through. None where there are no others.
    ///
    /// Activations of those others are copied where rows of 0 lie among them.
    pub fn backward_of_nonzero(&self, d_logps: &[f32]) -> Result<Option<Gradients>> {
        let mut parts = Vec::new();
        for (part, all) in self.parts.iter().zip(self.split(d_logps)?) {
            let (rows, own) = nonzero_rows(all, self.tokens);
            let (whole, cotangents) = (own.len() == all.len(), Cotangents { logps: own.into(), entropy: None });
            if whole {
                parts.push((part.clone(), cotangents));
            } else if !rows.is_empty() {
                parts.push((part.of(rows, self.tokens)?, cotangents));
            }
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let mut sum = Gradients::default();
        add_all(parts, &mut sum)?;
        Ok(Some(sum))
    }

    /// The values of each part among `values`, `[B, T]`.
    fn split<'a>(&self, values: &'a [f32]) -> Result<Vec<&'a [f32]>> {
        let count = self.count();
        ensure!(values.len() == count, "{} derivatives for {count} tokens", values.len());
        let mut rest = values;
        let own = |part: &Part| {
            let (own, others) = rest.split_at(part.targets.elem_count());
            rest = others;
            own
        };
        Ok(self.parts.iter().map(own).collect())
    }
}

/// The rows of `tokens` values that are not all 0, and their values.
fn nonzero_rows(values: &[f32], tokens: usize) -> (Vec<u32>, Vec<f32>) {
    let rows = values.chunks(tokens).enumerate().filter(|(_, row)| row.iter().any(|&value| value != 0.0));
    let (rows, values): (Vec<u32>, Vec<&[f32]>) = rows.map(|(number, row)| (number as u32, row)).unzip();
    (rows, values.concat())
}

/// Adds the gradients of all parts, first to each other in their order, then to `sum`.
fn add_all(mut parts: Vec<(Part, Cotangents<'_>)>, sum: &mut Gradients) -> Result<()> {
    if parts.len() == 1
        && let Some((part, cotangents)) = parts.pop()
    {
        return rayon::scope(|_| part.backward(&cotangents, sum));
    }
    let gradients = side_by_side(parts, |(part, cotangents)| {
        let mut own = Gradients::default();
        part.backward(&cotangents, &mut own)?;
        Ok(own)
    })?;
    let mut gradients = gradients.into_iter();
    let mut all = gradients.next().context("a forward pass has at least one part")?;
    gradients.try_for_each(|own| all.accumulate(own))?;
    sum.accumulate(all)
}

/// The values of a tensor on the host, row-major, as f32.
pub(super) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
}
