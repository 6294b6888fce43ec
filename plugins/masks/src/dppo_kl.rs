//! DPPO-Binary-KL: as [`crate::dppo_tv`], with a KL divergence for the distance.
//!
//! With p the trainer's probability of the token and q the other policy's, D = q ln(q/p) + (1 − q) ln((1 − q)/(1 − p)). Dropped where
//! A > 0, p > q and D > `clip_ratio_high`, or A ≤ 0, p < q and D > `clip_ratio_low`.
//!
//! Qi et al., arXiv 2602.04879; verl, `core_algos.py`, loss mode `dppo_kl` (there against `old`, which is the sampler's in its bypass
//! mode).

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::{checks, tokens};

/// Bounds in nats.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DppoKl {
    /// Largest divergence of a token that has fallen.
    #[serde(default = "bound")]
    clip_ratio_low: f32,
    /// Largest divergence of a token that has risen.
    #[serde(default = "bound")]
    clip_ratio_high: f32,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

fn bound() -> f32 {
    0.2
}

/// D above; `log_p` and `log_q` are the logarithms of `p` and `q`.
fn binary_kl((p, q): (f32, f32), log_p: f32, log_q: f32) -> f32 {
    // verl's: keeps the logarithm finite at certain tokens.
    let rest = |p: f32| 1.0 - p + 1e-8;
    q * (log_q - log_p) + (1.0 - q) * (rest(q) / rest(p)).ln()
}

impl PreBackwardMask for DppoKl {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        let limit = |advantage: f32| if advantage > 0.0 { self.clip_ratio_high } else { self.clip_ratio_low };
        tokens::drop_where(keep, |i| {
            let advantage = batch.advantages[i];
            let divergence = binary_kl(compared.probabilities(i), compared.of[i], compared.against[i]);
            compared.goes_further(i, advantage) && divergence > limit(advantage)
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

register!(PreBackwardMask, DppoKl, "masks.dppo-kl", "drops tokens that diverge too much and would go further", {
    clip_ratio_low = bound() => "largest divergence of a token that has fallen, nats",
    clip_ratio_high = bound() => "largest divergence of a token that has risen, nats",
    policies = Policies::TrainerSampler => policies::ABOUT,
});
