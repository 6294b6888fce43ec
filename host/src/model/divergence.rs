//! The KL divergence of a step, exact over the vocabulary.

use anyhow::Result;
use candle_core::{DType, Tensor};

use super::ops;
use super::params::{Params, head_name};
use super::policy::Policy;

/// The output matrix before and after a step, and its change, `[V, D]` each.
pub struct Heads {
    before: Tensor,
    after: Tensor,
    change: Tensor,
    temperature: f64,
}

impl Heads {
    /// Those of `policy`, whose weights were `before`; logits are divided by `temperature`. To be used until the weights change.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn new(policy: &Policy, before: &Params, temperature: f64) -> Result<Self> {
        let name = head_name(policy.config());
        let (before, after) = (before.get(name)?.as_detached_tensor(), policy.params().get(name)?.as_detached_tensor());
        Ok(Self { change: (&after - &before)?, before, after, temperature })
    }

    /// The sum over all tokens of the KL divergence, old to new, that the head's change alone causes, nats; `hidden` `[N, D]` are the
    /// features of the old policy.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn divergence_by_head(&self, hidden: &Tensor) -> Result<f64> {
        self.sum(&hidden.to_dtype(DType::F32)?, None)
    }

    /// The same for the whole step: `new` `[N, D]` are the features of the new policy.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn divergence(&self, old: &Tensor, new: &Tensor) -> Result<f64> {
        let (old, new) = (old.to_dtype(DType::F32)?, new.to_dtype(DType::F32)?);
        // A product of differences keeps what a difference of products loses: h1 W1 - h0 W0 = (h1 - h0) W1 + h0 (W1 - W0).
        let change = Tensor::cat(&[&(new - &old)?, &old], 1)?;
        let by = Tensor::cat(&[&self.after, &self.change], 1)?;
        self.sum(&old, Some((&change, &by)))
    }

    /// Logits exist for a bounded number of tokens at a time.
    fn sum(&self, hidden: &Tensor, moved: Option<(&Tensor, &Tensor)>) -> Result<f64> {
        let (count, chunk) = (hidden.dim(0)?, (ops::chunk_rows(self.before.dim(0)?) / 2).max(1));
        let (change, by) = moved.unwrap_or((hidden, &self.change));
        let mut rows = Vec::new();
        for from in (0..count).step_by(chunk) {
            let len = chunk.min(count - from);
            let logits = hidden.narrow(0, from, len)?.matmul(&self.before.t()?)?;
            let change = change.narrow(0, from, len)?.matmul(&by.t()?)?;
            rows.push(ops::divergence(&logits, &change, self.temperature)?);
        }
        if rows.is_empty() {
            return Ok(0.0);
        }
        let rows = Tensor::cat(&rows, 0)?;
        if !rows.device().is_cpu() {
            return Ok(rows.sum_all()?.to_scalar()?);
        }
        Ok(rows.to_vec1::<f64>()?.iter().sum())
    }
}
