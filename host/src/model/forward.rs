//! One forward pass over whole sequences, and the gradients that follow from it.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};

use super::backward::{Kept, Tape};
use super::decoder::{Decoder, rope};
use super::gradients::Gradients;
use super::ops;
use super::parallel::side_by_side;
use super::policy::Policy;
use super::sequences::Sequences;

/// Most rows of one part of a forward pass.
const MOST_ROWS: usize = 32;

/// One forward pass over `[B, T]` completion tokens, with or without what the backward pass needs.
pub struct Forward {
    /// Consecutive rows of the batch.
    pub(super) parts: Vec<Part>,
    tokens: usize,
}

/// The forward pass of some rows.
pub(super) struct Part {
    /// Features that produced the logits of the tokens, `[rows * T, D]`, in the policy's dtype.
    pub(super) hidden: Tensor,
    /// `[V, D]`, f32.
    pub(super) head: Tensor,
    /// Completion ids, `[rows * T]` u32.
    pub(super) targets: Tensor,
    pub(super) loss_temperature: f64,
    tape: Option<Tape>,
}

impl Policy {
    /// The forward pass for training; `loss_temperature` divides the logits.
    ///
    /// It keeps every activation, or with `with_gradient_checkpointing` what each layer starts from; the weights must not change before its
    /// backward pass.
    pub fn forward(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, true)
    }

    /// The forward pass for scores alone.
    pub fn forward_detached(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.run(rows, loss_temperature, false)
    }

    fn run(&self, rows: &Sequences, loss_temperature: f64, keep: bool) -> Result<Forward> {
        rows.check(self.config().vocab_size)?;
        ensure!(
            loss_temperature.is_finite() && loss_temperature > 0.0,
            "the loss temperature is {loss_temperature}, expected more than 0 (correct the configuration)"
        );
        let parts = self.split(rows.rows(), MOST_ROWS);
        let part = |range: Range<usize>| Part::new(self, &rows.slice(range), loss_temperature, keep);
        Ok(Forward::new(side_by_side(parts, part)?, rows.completion_len))
    }
}

impl Part {
    /// Runs the model; `keep` says whether activations are kept for the backward pass.
    pub(super) fn new(policy: &Policy, rows: &Sequences, loss_temperature: f64, keep: bool) -> Result<Self> {
        let (config, device) = (policy.config(), policy.device());
        let model = Decoder::for_rows(policy, &rows.numbers)?;
        let (prompt, tokens) = (rows.prompt_len, rows.completion_len);
        // The last token of a row produces no logits that anyone reads.
        let inputs = prompt + tokens - 1;
        let ids = Tensor::from_vec(rows.columns(0, inputs), (rows.rows(), inputs), device)?;
        let rope = rope(config, &rows.starts, inputs);
        let mut layers = Vec::new();
        let x = model.residual(&ids, &rope, |_, saved| {
            if keep {
                layers.push(if policy.checkpoints_gradients() { Kept::Entry(saved.x) } else { Kept::All(saved) });
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
            tape: keep.then(|| Tape {
                model: Arc::new(model),
                ids,
                rope,
                layers,
                last,
                tied: config.tie_word_embeddings,
            }),
        })
    }

    fn backward(&self, seed: &[f32]) -> Result<Gradients> {
        let tape = self.tape.as_ref().context("this forward pass kept no activations (call `forward`)")?;
        let seed = Tensor::from_slice(seed, seed.len(), self.hidden.device())?;
        let hidden = self.hidden.to_dtype(DType::F32)?;
        if tape.model.frozen {
            let d_hidden =
                ops::token_logps_by_hidden(&hidden, &self.head, &self.targets, &seed, self.loss_temperature)?;
            return tape.backward(&d_hidden, None);
        }
        let (d_hidden, d_head) =
            ops::token_logps_vjp(&hidden, &self.head, &self.targets, &seed, self.loss_temperature)?;
        tape.backward(&d_hidden, Some(d_head))
    }

    /// [`Self::backward`] over those rows alone that have a seed, where `tokens` is T.
    fn backward_of_seeded(&self, seed: &[f32], tokens: usize) -> Result<Gradients> {
        let (rows, seeds) = seeded_rows(seed, tokens);
        if rows.len() * tokens == seed.len() {
            return self.backward(seed);
        }
        let rows = Tensor::from_vec(rows, seeds.len() / tokens, self.hidden.device())?;
        let own = |tensor: &Tensor| -> Result<Tensor> {
            let by_row = tensor.reshape((tensor.dim(0)? / tokens, ()))?.index_select(&rows, 0)?;
            Ok(by_row.reshape([&[seeds.len()], &tensor.dims()[1..]].concat())?)
        };
        let tape = self.tape.as_ref().map(|tape| tape.of(&rows)).transpose()?;
        let (hidden, targets) = (own(&self.hidden)?, own(&self.targets)?);
        Self { hidden, targets, tape, head: self.head.clone(), ..*self }.backward(&seeds)
    }
}

impl Forward {
    pub(super) fn new(parts: Vec<Part>, tokens: usize) -> Self {
        Self { parts, tokens }
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

    /// The gradients of a loss whose derivative by the log-probabilities is `seed`, `[B, T]`.
    ///
    /// A detached forward pass, or a seed of another size, is an error.
    pub fn backward(&self, seed: &[f32]) -> Result<Gradients> {
        let gradients = side_by_side(self.with_seeds(seed)?, |(part, seed)| part.backward(seed))?;
        sum(gradients)?.context("a forward pass has at least one part")
    }

    /// The same where most rows may have seeds of nothing but 0: only the others are passed back through; none where there are no others.
    ///
    /// Activations of the rows with seeds are copied where others lie among them.
    pub fn backward_of_seeded(&self, seed: &[f32]) -> Result<Option<Gradients>> {
        let mut parts = self.with_seeds(seed)?;
        parts.retain(|(_, seed)| seed.iter().any(|&seed| seed != 0.0));
        sum(side_by_side(parts, |(part, seed)| part.backward_of_seeded(seed, self.tokens))?)
    }

    /// Each part with its own seeds of `seed`, `[B, T]`.
    fn with_seeds<'a>(&'a self, seed: &'a [f32]) -> Result<Vec<(&'a Part, &'a [f32])>> {
        let count = self.count();
        ensure!(seed.len() == count, "the seed has {} numbers, expected {count}", seed.len());
        let mut rest = seed;
        let mut seeded = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let (own, others) = rest.split_at(part.targets.elem_count());
            seeded.push((part, own));
            rest = others;
        }
        Ok(seeded)
    }
}

/// The rows of `tokens` seeds that are not all 0, and their seeds.
fn seeded_rows(seed: &[f32], tokens: usize) -> (Vec<u32>, Vec<f32>) {
    let rows = seed.chunks(tokens).enumerate().filter(|(_, seed)| seed.iter().any(|&seed| seed != 0.0));
    let (rows, seeds): (Vec<u32>, Vec<&[f32]>) = rows.map(|(row, seed)| (row as u32, seed)).unzip();
    (rows, seeds.concat())
}

/// The sum of the gradients of all parts, in their order; none of none.
fn sum(parts: Vec<Gradients>) -> Result<Option<Gradients>> {
    let mut parts = parts.into_iter();
    let Some(mut sum) = parts.next() else { return Ok(None) };
    parts.try_for_each(|part| sum.accumulate(&part))?;
    Ok(Some(sum))
}

/// The values of a tensor on the host, row-major, as f32.
pub(super) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
}
