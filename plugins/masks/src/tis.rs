//! Truncated importance weights: corrects for the sampler's being another policy than the trainer, within limits.
//!
//! r is the ratio of trainer to sampler, of a token or of a whole completion (the product). The weight is r, at most
//! `rollout_is_threshold`; with `rollout_is_threshold_lower` it is 0 outside the two, which is IcePop. `rollout_is_batch_normalize` divides
//! by the mean.
//!
//! Yao et al., *Your Efficient RL Framework Secretly Brings You Off-Policy RL Training*, 2025; verl, `rollout_corr_helper.py`, `rollout_is`;
//! TRL, `vllm_importance_sampling_mode = "token_truncate"` and `"sequence_truncate"`; slime, `--use-tis`.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::sequence::{self, Level};
use crate::{checks, tokens};

/// A ratio with limits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tis {
    /// Over what the ratio is taken.
    #[serde(default = "Level::token")]
    rollout_is: Level,
    /// Largest weight.
    #[serde(default = "threshold")]
    rollout_is_threshold: f32,
    /// Ratios below it, and above the other, weigh nothing.
    rollout_is_threshold_lower: Option<f32>,
    /// Whether the mean weight is made 1.
    #[serde(default)]
    rollout_is_batch_normalize: bool,
    /// Whose probabilities.
    #[serde(default = "Policies::old_sampler")]
    policies: Policies,
}

fn threshold() -> f32 {
    2.0
}

impl Tis {
    fn limited(&self, ratio: f32) -> f32 {
        match self.rollout_is_threshold_lower {
            None => ratio.min(self.rollout_is_threshold),
            Some(lower) if (lower..=self.rollout_is_threshold).contains(&ratio) => ratio,
            Some(_) => 0.0,
        }
    }

    /// Over tokens, or over completions of the means over their tokens, as verl.
    fn mean(&self, batch: &Batch, keep: &[u8], weights: &[f32]) -> f64 {
        let left =
            |row: std::ops::Range<usize>| row.filter(|&i| keep[i] == 1).map(|i| weights[i]).collect::<Vec<f32>>();
        if self.rollout_is == Level::Token {
            return sequence::mean(&left(0..weights.len()));
        }
        let rows = (0..batch.dims.completions as usize).map(|b| left(batch.dims.row(b)));
        let means: Vec<f64> = rows.filter(|row| !row.is_empty()).map(|row| sequence::mean(&row)).collect();
        means.iter().sum::<f64>() / means.len().max(1) as f64
    }
}

impl TokenWeight for Tis {
    fn weigh(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &[u8], weights: &mut [f32]) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(ctx, batch)?.log_ratios();
        let ratios = self.rollout_is.ratios(batch, &log_ratios);
        let limited: Vec<f32> = ratios.into_iter().map(|ratio| self.limited(ratio)).collect();
        let mean = if self.rollout_is_batch_normalize { self.mean(batch, keep, &limited) } else { 1.0 };
        // As verl: weights of next to nothing are left as they are.
        let by = if mean > 1e-8 { mean } else { 1.0 };
        for (i, weight) in weights.iter_mut().enumerate().filter(|(i, _)| keep[*i] == 1) {
            *weight = (f64::from(limited[i]) / by) as f32;
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE.only_if(self.rollout_is == Level::Token && !self.rollout_is_batch_normalize)
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::positive("rollout_is_threshold", self.rollout_is_threshold)?;
        let Some(lower) = self.rollout_is_threshold_lower else { return Ok(()) };
        checks::positive("rollout_is_threshold_lower", lower)?;
        checks::range(("rollout_is_threshold_lower", lower), ("rollout_is_threshold", self.rollout_is_threshold))
    }
}

register!(TokenWeight, Tis, "masks.tis", "weighs tokens by the ratio of trainer to sampler, within limits", {
    rollout_is = Level::Token => sequence::ABOUT,
    rollout_is_threshold = threshold() => "largest weight"; 1.0..100.0,
    rollout_is_threshold_lower = None::<f32> => "ratios below it, and above the other, weigh nothing; no such limit when absent",
    rollout_is_batch_normalize = false => "whether weights are divided by their mean",
    policies = Policies::OldSampler => policies::ABOUT,
});
