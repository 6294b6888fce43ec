//! Masked importance sampling: drops tokens or whole completions by their importance ratio.
//!
//! r is the ratio of trainer to sampler: of a token, of a whole completion (the product), or the
//! geometric mean over a completion. Tokens with r < `clip_min` or r > `clip_max` are dropped.
//! `veto_threshold` also drops each completion with a token whose own ratio is lower. The sources
//! also multiply kept tokens by r; the weight `masks.tis` does that.
//!
//! TRL, `vllm_importance_sampling_mode = "sequence_mask"` (the default there) and `"token_mask"`;
//! NeMo RL, `"seq-mask-tis"` (geometric); slime, `train_infer_mismatch_helper/mis.py` (`rs_level`,
//! `rs_veto_threshold`); verl, `rollout_rs`; Liu et al., *When Speed Kills Stability*, 2025.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::rated::{Bounded, Rated};
use crate::sequence::{self, Level};
use crate::{checks, tokens};

/// Drops tokens or completions by their importance ratio.
#[component(Mask, id = "masks.mis", within = Rated)]
struct Mis {
    #[key(default = Level::Sequence)]
    level: Level,
    /// Smallest ratio that is kept.
    #[key(default = 0.0, at_least = 0, infinite)]
    clip_min: f32,
    /// Largest ratio that is kept.
    #[key(default = 3.0, infinite, search = 1.00001..=1000.0, not_with = "target_rejection_rate")]
    clip_max: f32,
    /// Smallest ratio of any token of a completion that is kept; no limit when absent.
    #[key(at_least = 0, infinite)]
    veto_threshold: Option<f32>,
    #[key(default = Policies::OldSampler)]
    policies: Policies,
}

fn smallest(ratios: &[f32]) -> f32 {
    ratios.iter().copied().fold(f32::INFINITY, f32::min)
}

impl Bounded for Mis {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        let ratios = self.level.ratios(batch, &log_ratios);
        let mut sizes: Vec<f64> = ratios
            .into_iter()
            .map(|ratio| policies::above_one(ratio, self.clip_min))
            .collect();
        if let Some(threshold) = self.veto_threshold {
            for (row, smallest) in sequence::by_completion(batch, &log_ratios, smallest) {
                if smallest < threshold.ln() {
                    sizes[row].fill(f64::INFINITY);
                }
            }
        }
        Ok(sizes)
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.clip_max) - 1.0
    }

    fn as_key(&self, limit: f64) -> f64 {
        1.0 + limit
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> Traits {
        tokens::ALONE.only_if(self.level == Level::Token && self.veto_threshold.is_none())
            | Traits::NO_OPTIMIZER
    }

    fn validate(&self, _: bool) -> Result<(), PluginError> {
        checks::ordered([("clip_min", self.clip_min), ("clip_max", self.clip_max)])
    }
}
