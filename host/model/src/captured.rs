//! Outputs of sampled tokens, collected in the sampler's own passes. The policy then needs no
//! second pass for them.

use anyhow::{Context, Result};
use candle_core::Tensor;

use super::ops;
use super::outputs::{TokenOutputs, TopTensors, Wants, collect};
use super::slots::Next;

/// Outputs to collect while sampling.
#[derive(Debug, Clone, Copy)]
pub struct Capture {
    /// Outputs to compute besides the log-probabilities.
    pub wants: Wants,
    /// Divisor of the logits.
    pub loss_temperature: f64,
}

/// Outputs of some rows, collected step by step: each step holds one token of every active row.
pub(super) struct Captured {
    capture: Capture,
    vocab_size: usize,
    steps: Vec<Step>,
}

/// A token that has just been drawn.
pub(super) struct DrawnToken {
    pub(super) id: u32,
    /// Index in its completion.
    pub(super) index: usize,
}

struct Step {
    /// The row of each token.
    rows: Vec<usize>,
    /// The index of each token in its completion.
    indices: Vec<usize>,
    /// The columns of `ops::logit_stats`, `[A, 4]`.
    stats: Tensor,
    /// Features, `[A, D]`.
    hidden: Option<Tensor>,
    /// The most likely tokens, `[A, K]`.
    top: Option<TopTensors>,
}

impl Captured {
    pub(super) fn new(capture: Capture) -> Self {
        Self {
            capture,
            vocab_size: 0,
            steps: Vec::new(),
        }
    }

    /// Adds one token per row of `next`, drawn from its logits.
    pub(super) fn take(&mut self, next: &Next, drawn: &[DrawnToken]) -> Result<()> {
        let Next {
            rows,
            features,
            logits,
        } = next;
        let ids: Vec<u32> = drawn.iter().map(|token| token.id).collect();
        let targets = Tensor::from_vec(ids, rows.len(), logits.device())?;
        self.vocab_size = logits.dim(1)?;
        let Capture {
            wants,
            loss_temperature,
        } = self.capture;
        let top = match wants.last_layer_k {
            Some(k) => {
                let ids = ops::top_ids(logits, k.min(self.vocab_size))?;
                let logits = logits.gather(&ids, 1)?;
                Some(TopTensors { ids, logits })
            }
            None => None,
        };
        let hidden = (wants.hidden || top.is_some()).then(|| features.clone());
        self.steps.push(Step {
            rows: rows.clone(),
            indices: drawn.iter().map(|token| token.index).collect(),
            stats: ops::logit_stats(logits, &targets, loss_temperature)?,
            hidden,
            top,
        });
        Ok(())
    }

    /// The outputs of `rows` rows of `tokens` tokens each. Padding positions repeat the outputs of
    /// another token.
    pub(super) fn finish(self, rows: usize, tokens: usize) -> Result<TokenOutputs> {
        let first = self.steps.first().context("nothing was sampled")?;
        let places = self.places(rows, tokens);
        let places = Tensor::from_vec(places, rows * tokens, first.stats.device())?;
        let stats = self
            .column(&places, |step| Some(&step.stats))?
            .context("nothing was sampled")?;
        let ids = self.column(&places, |step| Some(&step.top.as_ref()?.ids))?;
        let logits = self.column(&places, |step| Some(&step.top.as_ref()?.logits))?;
        let hidden = self.column(&places, |step| step.hidden.as_ref())?;
        let top = ids
            .zip(logits)
            .map(|(ids, logits)| TopTensors { ids, logits });
        collect(&self.capture.wants, &stats, hidden, top, self.vocab_size)
    }

    /// For each of the `[rows, tokens]` places, the number of its token among the tokens of all
    /// steps.
    fn places(&self, rows: usize, tokens: usize) -> Vec<u32> {
        let mut places = vec![0; rows * tokens];
        let mut number = 0;
        for step in &self.steps {
            for (row, index) in step.rows.iter().zip(&step.indices) {
                places[row * tokens + index] = number;
                number += 1;
            }
        }
        places
    }

    /// One tensor of all steps, with the rows at `places`; `None` if a step lacks it.
    fn column(
        &self,
        places: &Tensor,
        of_step: impl Fn(&Step) -> Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let Some(parts) = self.steps.iter().map(of_step).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        Ok(Some(Tensor::cat(&parts, 0)?.index_select(places, 0)?))
    }
}
