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
use crate::rated::{self, Bounded, Rated};
use crate::sequence::{self, Level};
use crate::{checks, tokens};

/// Range of the ratios to keep, at one level.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mis {
    #[serde(default = "Level::sequence")]
    level: Level,
    #[serde(default)]
    clip_min: f32,
    clip_max: Option<f32>,
    target_rejection_rate: Option<f64>,
    veto_threshold: Option<f32>,
    #[serde(default = "Policies::old_sampler")]
    policies: Policies,
}

const CLIP_MAX: f32 = 3.0;

impl Mis {
    fn clip_max(&self) -> f32 {
        self.clip_max.unwrap_or(CLIP_MAX)
    }
}

impl Bounded for Mis {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (
            self.target_rejection_rate,
            self.clip_max.map(|_| "clip_max"),
        )
    }

    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        let ratios = self.level.ratios(batch, &log_ratios);
        let mut sizes: Vec<f64> = ratios
            .into_iter()
            .map(|ratio| policies::above_one(ratio, self.clip_min))
            .collect();
        if let Some(threshold) = self.veto_threshold {
            let lowest = |ratios: &[f32]| ratios.iter().copied().fold(f32::INFINITY, f32::min);
            for (row, lowest) in sequence::by_completion(batch, &log_ratios, lowest) {
                if lowest < threshold.ln() {
                    sizes[row].fill(f64::INFINITY);
                }
            }
        }
        Ok(sizes)
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.clip_max()) - 1.0
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

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("clip_min", self.clip_min)?;
        checks::bound("veto_threshold", self.veto_threshold.unwrap_or(0.0))?;
        checks::range(("clip_min", self.clip_min), ("clip_max", self.clip_max()))
    }
}

register!(Mask, Rated<Mis>, "masks.mis", "drops tokens or completions by their importance ratio", {
    level = Level::Sequence => sequence::ABOUT,
    clip_min = 0.0 => "smallest ratio kept",
    clip_max = CLIP_MAX => "largest ratio kept"; 1.00001..1000.0,
    veto_threshold = None::<f32> => "smallest ratio of any token of a completion that is kept; no limit when absent",
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::OldSampler => policies::ABOUT,
});
