//! Outputs of sampled tokens, collected in the sampler's own passes. The policy then needs no
//! second pass for them.

use anyhow::{Context, Result};
use candle_core::Tensor;

use super::ops;
use super::outputs::{TokenOutputs, Wants, collect};
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

struct Step {
    /// Of each token: its row, and its index in the completion.
    places: Vec<(usize, usize)>,
    /// The columns of `ops::logit_stats`, `[A, 4]`.
    stats: Tensor,
    /// Features, `[A, D]`.
    hidden: Option<Tensor>,
    /// Ids and logits of the top tokens, `[A, K]` each.
    top: Option<(Tensor, Tensor)>,
}

impl Captured {
    pub(super) fn new(capture: Capture) -> Self {
        Self {
            capture,
            vocab_size: 0,
            steps: Vec::new(),
        }
    }

    /// Adds one token per row, drawn from the logits of `next`: its id, and its index in the
    /// completion.
    pub(super) fn take(&mut self, next: &Next, drawn: Vec<(u32, usize)>) -> Result<()> {
        let Next {
            rows,
            features,
            logits,
        } = next;
        let (ids, numbers): (Vec<u32>, Vec<usize>) = drawn.into_iter().unzip();
        let targets = Tensor::from_vec(ids, rows.len(), logits.device())?;
        self.vocab_size = logits.dim(1)?;
        let Capture {
            wants,
            loss_temperature,
        } = self.capture;
        let top = |k: usize| -> Result<(Tensor, Tensor)> {
            let ids = ops::top_ids(logits, k.min(self.vocab_size))?;
            let logits = logits.gather(&ids, 1)?;
            Ok((ids, logits))
        };
        let top = wants.last_layer_k.map(top).transpose()?;
        let hidden = (wants.hidden || top.is_some()).then(|| features.clone());
        let places = rows.iter().copied().zip(numbers).collect();
        self.steps.push(Step {
            places,
            stats: ops::logit_stats(logits, &targets, loss_temperature)?,
            hidden,
            top,
        });
        Ok(())
    }

    /// The outputs of `rows` rows of `tokens` tokens each. Padding positions repeat the outputs of
    /// another token.
    pub(super) fn finish(self, rows: usize, tokens: usize) -> Result<TokenOutputs> {
        let Self {
            capture,
            vocab_size,
            steps,
        } = self;
        let (mut places, mut before) = (vec![0u32; rows * tokens], 0);
        for step in &steps {
            for (number, (row, token)) in step.places.iter().enumerate() {
                places[row * tokens + token] = (before + number) as u32;
            }
            before += step.places.len();
        }
        let first = steps.first().context("nothing was sampled")?;
        let places = Tensor::from_vec(places, rows * tokens, first.stats.device())?;
        let all = |part: &dyn Fn(&Step) -> Option<&Tensor>| -> Result<Option<Tensor>> {
            let Some(parts) = steps.iter().map(part).collect::<Option<Vec<_>>>() else {
                return Ok(None);
            };
            Ok(Some(Tensor::cat(&parts, 0)?.index_select(&places, 0)?))
        };
        let stats = all(&|step| Some(&step.stats))?.context("nothing was sampled")?;
        let ids = all(&|step| step.top.as_ref().map(|(ids, _)| ids))?;
        let logits = all(&|step| step.top.as_ref().map(|(_, logits)| logits))?;
        let hidden = all(&|step| step.hidden.as_ref())?;
        collect(&capture.wants, &stats, hidden, ids.zip(logits), vocab_size)
    }
}
