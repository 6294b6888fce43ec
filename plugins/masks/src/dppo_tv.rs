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
use crate::rated::{self, Bounded, Rated};
use crate::sides::{self, Sides};

/// Bounds on the probability itself, not on the ratio.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DppoTv {
    /// Both bounds, where the next two do not say otherwise.
    clip_ratio: Option<f32>,
    /// For tokens that have fallen.
    clip_ratio_low: Option<f32>,
    /// For tokens that have risen.
    clip_ratio_high: Option<f32>,
    /// Share of tokens to drop, in the place of a threshold.
    target_rejection_rate: Option<f64>,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

impl DppoTv {
    fn sides(&self) -> Sides {
        Sides { both: self.clip_ratio, low: self.clip_ratio_low, high: self.clip_ratio_high }
    }
}

impl Bounded for DppoTv {
    fn rate(&self) -> Option<f64> {
        self.target_rejection_rate
    }

    fn given(&self) -> Option<&'static str> {
        self.sides().given()
    }

    fn sizes(&self, ctx: &mut Ctx, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        let size = |i: usize| {
            let (p, q) = compared.probabilities(i);
            if compared.goes_further(i, batch.advantages[i]) { f64::from((p - q).abs()) } else { 0.0 }
        };
        Ok((0..batch.dims.len()).map(size).collect())
    }

    fn limit(&self, advantage: f32) -> f64 {
        f64::from(self.sides().limit(advantage))
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.sides().check()
    }
}

register!(PreBackwardMask, Rated<DppoTv>, "masks.dppo-tv", "drops tokens that have moved too far and would go further", {
    clip_ratio = sides::bound() => "how far a token's probability may move"; 1e-6..1.0,
    clip_ratio_low = None::<f32> => sides::LOW,
    clip_ratio_high = None::<f32> => sides::HIGH,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
