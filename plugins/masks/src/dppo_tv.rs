//! DPPO-Binary-TV: drops tokens whose probability has moved too far and that the step would push further.
//!
//! With p the trainer's probability of the token and q the other policy's: dropped where A > 0 and p − q > `clip_ratio_high`, or
//! A ≤ 0 and q − p > `clip_ratio_low`. The distance is the total variation between the two policies once all other tokens count as
//! one.
//!
//! Qi et al., *Rethinking the Trust Region in LLM Reinforcement Learning*, arXiv 2602.04879; verl, `core_algos.py`, loss mode
//! `dppo_tv` (there against `old`, which is the sampler's in its bypass mode); prime-rl's default loss, `dppo_mask_low` and `_high`.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::{checks, tokens};

/// Bounds on the probability itself, not on the ratio.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DppoTv {
    /// How far a token may have fallen.
    #[serde(default = "bound")]
    clip_ratio_low: f32,
    /// How far a token may have risen.
    #[serde(default = "bound")]
    clip_ratio_high: f32,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

fn bound() -> f32 {
    0.2
}

impl PreBackwardMask for DppoTv {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        let limit = |advantage: f32| if advantage > 0.0 { self.clip_ratio_high } else { self.clip_ratio_low };
        tokens::drop_where(keep, |i| {
            let ((p, q), advantage) = (compared.probabilities(i), batch.advantages[i]);
            compared.goes_further(i, advantage) && (p - q).abs() > limit(advantage)
        });
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("clip_ratio_low", self.clip_ratio_low)?;
        checks::bound("clip_ratio_high", self.clip_ratio_high)
    }
}

register!(PreBackwardMask, DppoTv, "masks.dppo-tv", "drops tokens that have moved too far and would go further", {
    clip_ratio_low = bound() => "how far a token's probability may have fallen",
    clip_ratio_high = bound() => "how far it may have risen",
    policies = Policies::TrainerSampler => policies::ABOUT,
});
