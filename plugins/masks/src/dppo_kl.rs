//! DPPO-Binary-KL: as [`crate::dppo_tv`], with a KL divergence for the distance.
//!
//! With p the trainer's probability of the token and q the other policy's, D = q ln(q/p) + (1 − q) ln((1 − q)/(1 − p)). Dropped where
//! A > 0, p > q and D > `clip_ratio_high`, or A ≤ 0, p < q and D > `clip_ratio_low`.
//!
//! Qi et al., arXiv 2602.04879; verl, `core_algos.py`, loss mode `dppo_kl` (there against `old`, which is the sampler's in its bypass
//! mode).

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::rated::{self, Bounded, Rated};
use crate::sides::{self, Sides};

/// Bounds in nats.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DppoKl {
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

/// D above; `log_p` and `log_q` are the logarithms of `p` and `q`.
fn binary_kl((p, q): (f32, f32), log_p: f32, log_q: f32) -> f32 {
    // verl's: keeps the logarithm finite at certain tokens.
    let rest = |p: f32| 1.0 - p + 1e-8;
    q * (log_q - log_p) + (1.0 - q) * (rest(q) / rest(p)).ln()
}

impl DppoKl {
    fn sides(&self) -> Sides {
        Sides { both: self.clip_ratio, low: self.clip_ratio_low, high: self.clip_ratio_high }
    }
}

impl Bounded for DppoKl {
    fn rate(&self) -> Option<f64> {
        self.target_rejection_rate
    }

    fn given(&self) -> Option<&'static str> {
        self.sides().given()
    }

    fn sizes(&self, ctx: &mut Ctx, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        let size = |i: usize| {
            let divergence = binary_kl(compared.probabilities(i), compared.of[i], compared.against[i]);
            if compared.goes_further(i, batch.advantages[i]) { f64::from(divergence.max(0.0)) } else { 0.0 }
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

register!(PreBackwardMask, Rated<DppoKl>, "masks.dppo-kl", "drops tokens that diverge too much and would go further", {
    clip_ratio = sides::bound() => "largest divergence of a token, nats"; 1e-9..10.0,
    clip_ratio_low = None::<f32> => sides::LOW,
    clip_ratio_high = None::<f32> => sides::HIGH,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
