//! The exact KL divergence of a step, over the full vocabulary.

use anyhow::{Context, Result};
use candle_core::{DType, Tensor};

use super::ops;
use super::params::Params;
use super::policy::Policy;
use super::shapes::head_name;

/// Error message for a divergence by the head alone when an adapter leaves the head frozen.
const FROZEN: &str = "the head is not trained: `model.use_peft` trains an adapter below it, \
                      so a step does not change the head (measure the KL of the whole step)";

/// The head before and after a step, and its change, `[V, D]` each.
pub struct Heads {
    before: Tensor,
    after: Tensor,
    /// Change of the head; `None` for a frozen head.
    change: Option<Tensor>,
    temperature: f64,
}

impl Heads {
    /// The heads of the weights `before` a step and of `policy`, which has taken it. Logits are
    /// divided by `temperature`. The value is valid until the weights change.
    pub fn new(policy: &Policy, before: &Params, temperature: f64) -> Result<Self> {
        let name = head_name(policy.config());
        let after = policy.weights().get(name)?.as_detached_tensor();
        if policy.adapter().is_some() {
            return Ok(Self {
                before: after.clone(),
                after,
                change: None,
                temperature,
            });
        }
        let before = before.get(name)?.as_detached_tensor();
        Ok(Self {
            change: Some((&after - &before)?),
            before,
            after,
            temperature,
        })
    }

    /// KL divergence, old to new, that the head's change alone causes, summed over all tokens,
    /// nats. `hidden` `[N, D]` holds the features of the old policy.
    pub fn divergence_by_head(&self, hidden: &Tensor) -> Result<f64> {
        let change = self.change.as_ref().context(FROZEN)?;
        let hidden = hidden.to_dtype(DType::F32)?;
        self.sum(&hidden, &hidden, change)
    }

    /// KL divergence, old to new, that the whole step causes, summed over all tokens, nats.
    ///
    /// `old` and `new`, `[N, D]` each, are the features of the old and the new policy.
    pub fn divergence(&self, old: &Tensor, new: &Tensor) -> Result<f64> {
        let old = old.to_dtype(DType::F32)?;
        // Products of differences avoid the cancellation of a difference of products: h1 W1 - h0 W0
        // = (h1 - h0) W1 + h0 (W1 - W0).
        let moved = (new.to_dtype(DType::F32)? - &old)?;
        match &self.change {
            None => self.sum(&old, &moved, &self.after),
            Some(change) => {
                let by = Tensor::cat(&[&self.after, change], 1)?;
                self.sum(&old, &Tensor::cat(&[&moved, &old], 1)?, &by)
            }
        }
    }

    /// Sums the divergence between the logits of `hidden` before the step and the same logits plus
    /// `moved` `by`ᵀ.
    fn sum(&self, hidden: &Tensor, moved: &Tensor, by: &Tensor) -> Result<f64> {
        Ok(ops::divergence_of_products(
            [hidden, &self.before],
            [moved, by],
            self.temperature,
        )?)
    }
}
