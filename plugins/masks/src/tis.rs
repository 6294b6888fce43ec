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
use serde::Serialize;

use crate::policies::{self, Policies};
use crate::sequence::{self, Level};
use crate::{checks, tokens};

/// A ratio with limits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tis {
    #[serde(default = "Level::token")]
    rollout_is: Level,
    #[serde(default = "threshold")]
    rollout_is_threshold: f32,
    rollout_is_threshold_lower: Option<f32>,
    mode: Option<Mode>,
    #[serde(default)]
    rollout_is_batch_normalize: bool,
    #[serde(default = "Policies::old_sampler")]
    policies: Policies,
}

fn threshold() -> f32 {
    2.0
}

/// Treatment of a ratio outside the limits.
#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
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
        let left = |row: std::ops::Range<usize>| {
            row.filter(|&i| token_mask[i] == 1)
                .map(|i| weights[i])
                .collect::<Vec<f32>>()
        };
        if self.rollout_is == Level::Token {
            return sequence::mean(&left(0..weights.len()));
        }
        let rows = (0..batch.dims.completions as usize).map(|b| left(batch.dims.row(b)));
        let means: Vec<f64> = rows
            .filter(|row| !row.is_empty())
            .map(|row| sequence::mean(&row))
            .collect();
        means.iter().sum::<f64>() / means.len().max(1) as f64
    }
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
        checks::positive("rollout_is_threshold", self.rollout_is_threshold)?;
        let Some(lower) = self.rollout_is_threshold_lower else {
            return Ok(());
        };
        checks::positive("rollout_is_threshold_lower", lower)?;
        checks::range(
            ("rollout_is_threshold_lower", lower),
            ("rollout_is_threshold", self.rollout_is_threshold),
        )
    }
}

register!(Weight, Tis, "masks.tis", "weighs tokens by the ratio of trainer to sampler, within limits", {
    rollout_is = Level::Token => sequence::ABOUT,
    rollout_is_threshold = threshold() => "largest ratio that is a weight as it is"; 1.0..100.0,
    rollout_is_threshold_lower = None::<f32> => "smallest one; no such limit when absent",
    mode = None::<Mode> => "ratios outside: `truncate`, the nearer limit is the weight; `mask`, they weigh nothing; when absent `mask` with a lower limit, else `truncate`",
    rollout_is_batch_normalize = false => "divide weights by their mean",
    policies = Policies::OldSampler => policies::ABOUT,
});
