//! IPO: drops tokens whose probability has moved too far, whichever way the step would push them.
//!
//! With p the trainer's probability of the token and q the sampler's: dropped where abs(p − q) > `ipo_threshold`.
//!
//! prime-rl, `trainer/rl/loss.py`, loss type `ipo`.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::{checks, tokens};

/// A bound on both sides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ipo {
    /// How far a token's probability may have moved.
    #[serde(default = "threshold")]
    ipo_threshold: f32,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

fn threshold() -> f32 {
    0.1
}

impl PreBackwardMask for Ipo {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        tokens::drop_where(keep, |i| {
            let (p, q) = compared.probabilities(i);
            (p - q).abs() > self.ipo_threshold
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
        checks::bound("ipo_threshold", self.ipo_threshold)
    }
}

register!(PreBackwardMask, Ipo, "masks.ipo", "drops tokens whose probability has moved too far, either way", {
    ipo_threshold = threshold() => "how far a token's probability may have moved"; 1e-6..1.0,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
