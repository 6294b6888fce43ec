//! Masked importance sampling: drops tokens or whole completions by their importance ratio.
//!
//! r is the ratio of trainer to sampler, of a token, of a whole completion (the product) or the geometric mean over it. Dropped where
//! r < `clip_min` or r > `clip_max`; and, with `veto_threshold`, completions that hold a token whose own ratio is below that. The sources
//! also multiply what stays by r, which is the weight `masks.tis`.
//!
//! TRL, `vllm_importance_sampling_mode = "sequence_mask"` (the default there) and `"token_mask"`; NeMo RL, `"seq-mask-tis"` (geometric);
//! slime, `train_infer_mismatch_helper/mis.py` (`rs_level`, `rs_veto_threshold`); verl, `rollout_rs`; Liu et al., *When Speed Kills
//! Stability*, 2025.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::sequence::{self, Level};
use crate::{checks, tokens};

/// A range of ratios at one level.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mis {
    /// Over what the ratio is taken.
    #[serde(default = "Level::sequence")]
    level: Level,
    /// Smallest ratio kept.
    #[serde(default)]
    clip_min: f32,
    /// Largest ratio kept.
    #[serde(default = "clip_max")]
    clip_max: f32,
    /// Smallest ratio of any token of a completion that is kept.
    veto_threshold: Option<f32>,
    /// Whose probabilities.
    #[serde(default = "Policies::old_sampler")]
    policies: Policies,
}

fn clip_max() -> f32 {
    3.0
}

impl PreBackwardMask for Mis {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(ctx, batch)?.log_ratios();
        if let Some(threshold) = self.veto_threshold {
            let lowest = |ratios: &[f32]| ratios.iter().copied().fold(f32::INFINITY, f32::min);
            for (row, lowest) in sequence::by_completion(batch, &log_ratios, lowest) {
                keep[row].iter_mut().for_each(|keep| *keep &= u8::from(lowest >= threshold.ln()));
            }
        }
        let ratios = self.level.ratios(batch, &log_ratios);
        tokens::drop_where(keep, |i| !(self.clip_min..=self.clip_max).contains(&ratios[i]));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE.only_if(self.level == Level::Token && self.veto_threshold.is_none()) | MaskTraits::NO_OPTIMIZER
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("clip_min", self.clip_min)?;
        checks::bound("veto_threshold", self.veto_threshold.unwrap_or(0.0))?;
        checks::range(("clip_min", self.clip_min), ("clip_max", self.clip_max))
    }
}

register!(PreBackwardMask, Mis, "masks.mis", "drops tokens or completions by their importance ratio", {
    level = Level::Sequence => sequence::ABOUT,
    clip_min = 0.0 => "smallest ratio kept",
    clip_max = clip_max() => "largest ratio kept"; 1.00001..1000.0,
    veto_threshold = None::<f32> => "smallest ratio of any token of a completion that is kept; no limit when absent",
    policies = Policies::OldSampler => policies::ABOUT,
});
