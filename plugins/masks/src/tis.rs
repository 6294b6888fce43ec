//! Truncated importance weights, which correct for the difference between sampler and trainer
//! within limits.
//!
//! r is the ratio of trainer to sampler, of a token or of a whole completion (the product). The
//! weight is r. Outside the limits it is the nearer limit (`truncate`) or 0 (`mask`, which is
//! IcePop). Without `mode` it is 0 if there is a lower limit, as in verl.
//! `rollout_is_batch_normalize` divides the weights by their mean.
//!
//! Yao et al., *Your Efficient RL Framework Secretly Brings You Off-Policy RL Training*, 2025;
//! verl, `rollout_corr_helper.py`, `rollout_is`; TRL, `vllm_importance_sampling_mode`, all four;
//! slime, `--use-tis`, whose `tis_mode` is `mode`.

use capo_plugin::prelude::*;

use crate::policies::Policies;
use crate::sequence::{self, Level};
use crate::{checks, tokens};

/// Weighs tokens by the ratio of trainer to sampler, within limits.
#[component(Weight, id = "masks.tis")]
struct Tis {
    #[key(default = Level::Token)]
    rollout_is: Level,
    /// Largest ratio that is a weight as it is.
    #[key(default = 2.0, above = 0, search = 1.0..=100.0)]
    rollout_is_threshold: f32,
    /// Smallest ratio that is a weight as it is; no such limit when absent.
    #[key(above = 0)]
    rollout_is_threshold_lower: Option<f32>,
    /// The weight of a ratio outside: the nearer limit, or 0; when absent `mask` with a lower
    /// limit, else `truncate`.
    #[key]
    mode: Option<Mode>,
    /// Divide weights by their mean.
    #[key(default = false)]
    rollout_is_batch_normalize: bool,
    #[key(default = Policies::OldSampler)]
    policies: Policies,
}

/// Treatment of a ratio outside the limits.
#[derive(Choice, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The weight is the nearer limit.
    Truncate,
    /// The weight is 0.
    Mask,
}

impl Tis {
    fn mode(&self) -> Mode {
        self.mode
            .unwrap_or(if self.rollout_is_threshold_lower.is_some() {
                Mode::Mask
            } else {
                Mode::Truncate
            })
    }

    fn limited(&self, ratio: f32) -> f32 {
        let lower = self.rollout_is_threshold_lower.unwrap_or(0.0);
        let limited = ratio.clamp(lower, self.rollout_is_threshold);
        if limited != ratio && self.mode() == Mode::Mask {
            0.0
        } else {
            limited
        }
    }

    /// Mean weight over tokens, or over completions of the means over their tokens, as in verl.
    fn mean(&self, batch: &Batch, token_mask: &[u8], weights: &[f32]) -> f64 {
        if self.rollout_is == Level::Token {
            return sequence::mean(&kept(token_mask, weights));
        }
        let mut means = Vec::new();
        for b in 0..batch.dims.completions as usize {
            let row = batch.dims.row(b);
            let kept = kept(&token_mask[row.clone()], &weights[row]);
            if !kept.is_empty() {
                means.push(sequence::mean(&kept));
            }
        }
        means.iter().sum::<f64>() / means.len().max(1) as f64
    }
}

/// The weights of the tokens that the mask keeps.
fn kept(token_mask: &[u8], weights: &[f32]) -> Vec<f32> {
    let tokens = token_mask.iter().zip(weights);
    tokens
        .filter(|(keep, _)| **keep == 1)
        .map(|(_, weight)| *weight)
        .collect()
}

impl Weight for Tis {
    fn weigh(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        token_mask: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        let ratios = self.rollout_is.ratios(batch, &log_ratios);
        let limited: Vec<f32> = ratios
            .into_iter()
            .map(|ratio| self.limited(ratio))
            .collect();
        let mean = if self.rollout_is_batch_normalize {
            self.mean(batch, token_mask, &limited)
        } else {
            1.0
        };
        // As in verl, near-zero weights are not divided.
        let by = if mean > 1e-8 { mean } else { 1.0 };
        for (i, weight) in weights
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| token_mask[*i] == 1)
        {
            *weight = (f64::from(limited[i]) / by) as f32;
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> Traits {
        tokens::ALONE.only_if(self.rollout_is == Level::Token && !self.rollout_is_batch_normalize)
            | Traits::NO_OPTIMIZER
    }

    fn validate(&self) -> Result<(), PluginError> {
        match self.rollout_is_threshold_lower {
            Some(lower) => checks::ordered([
                ("rollout_is_threshold_lower", lower),
                ("rollout_is_threshold", self.rollout_is_threshold),
            ]),
            None => Ok(()),
        }
    }
}
