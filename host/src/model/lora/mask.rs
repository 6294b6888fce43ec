//! Dropout before the first factor, as a function of where a number stands: every pass of a step leaves out the same.

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;
use rand::Rng;
use rayon::prelude::*;

use crate::rng;

/// Which step's dropout it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropout {
    /// The run's seed.
    pub seed: u64,
    /// Its stream: `lora.dropout`, or another one for passes that no gradient follows.
    pub stream: &'static str,
    /// Optimizer steps done.
    pub step: u64,
}

impl Dropout {
    /// That of the optimizer step after `step` steps.
    pub fn of_step(seed: u64, step: u64) -> Self {
        Self { seed, stream: "lora.dropout", step }
    }

    /// That of the log-probability pass over a rollout for several steps, after `step` steps.
    pub fn of_rollout(seed: u64, step: u64) -> Self {
        Self { seed, stream: "lora.dropout.rollout", step }
    }
}

/// The dropout before the factors of one module.
#[derive(Debug, Clone)]
pub(crate) struct DropoutMask {
    pub(crate) dropout: Dropout,
    /// Share that is left out.
    pub(crate) rate: f64,
    /// Numbers of the rows in their batch.
    pub(crate) rows: Arc<[u64]>,
    /// Layer and place of the module.
    pub(crate) module: [u64; 2],
}

impl DropoutMask {
    /// `x` `[rows * tokens, in]` with what is left multiplied by `1 / (1 - rate)`. Source: `torch.nn.Dropout`.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let width = x.elem_count() / self.rows.len().max(1);
        let mut mask = vec![0.0_f32; x.elem_count()];
        let (left_out, kept) = ((self.rate * 2.0_f64.powi(32)) as u32, (1.0 / (1.0 - self.rate)) as f32);
        mask.par_chunks_mut(width.max(1)).zip(self.rows.par_iter()).for_each(|(mask, row)| {
            let index = [self.dropout.step, *row, self.module[0], self.module[1]];
            let mut rng = rng::stream(self.dropout.seed, self.dropout.stream, &index);
            for value in mask {
                if rng.next_u32() >= left_out {
                    *value = kept;
                }
            }
        });
        Ok((x * Tensor::from_vec(mask, x.shape(), x.device())?.to_dtype(x.dtype())?)?)
    }
}
