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
use crate::sides::{self, Sides};
use crate::tokens;

/// Bounds on the probability itself, not on the ratio.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DppoTv {
    /// Both bounds, where the next two do not say otherwise.
    #[serde(default = "sides::bound")]
    clip_ratio: f32,
    /// For tokens that have fallen.
    clip_ratio_low: Option<f32>,
    /// For tokens that have risen.
    clip_ratio_high: Option<f32>,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

impl DppoTv {
    fn sides(&self) -> Sides {
        Sides { both: self.clip_ratio, low: self.clip_ratio_low, high: self.clip_ratio_high }
    }
}

impl PreBackwardMask for DppoTv {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        let sides = self.sides();
        tokens::drop_where(keep, |i| {
            let ((p, q), advantage) = (compared.probabilities(i), batch.advantages[i]);
            compared.goes_further(i, advantage) && (p - q).abs() > sides.limit(advantage)
        });
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.sides().check()
    }
}

register!(PreBackwardMask, DppoTv, "masks.dppo-tv", "drops tokens that have moved too far and would go further", {
    clip_ratio = sides::bound() => "how far a token's probability may move"; 1e-6..1.0,
    clip_ratio_low = None::<f32> => sides::LOW,
    clip_ratio_high = None::<f32> => sides::HIGH,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
