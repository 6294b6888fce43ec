//! DRPO where it is a weight: DPPO-Binary-TV without an edge.
//!
//! With p the trainer's probability of the token and q the sampler's, the weight is 1 − sign(A) (p − q) / `delta`: it falls to 0 where the
//! token has moved by `delta` the way the step would push it, and exceeds 1 where the step would bring it back. Beyond `delta` the paper's
//! factor turns negative and pulls back; a weight cannot, so there it is 0.
//!
//! Yao et al., *Rethinking the Divergence Regularization in LLM RL*, arXiv 2606.09821 (no code is public; `delta` is DPPO's bound).

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::{checks, tokens};

/// Where the weight comes to 0.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drpo {
    /// Largest change of a token's probability.
    #[serde(default = "delta")]
    delta: f32,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

fn delta() -> f32 {
    0.2
}

impl TokenWeight for Drpo {
    fn weigh(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &[u8], weights: &mut [f32]) -> Result<(), PluginError> {
        let compared = self.policies.compare(ctx, batch)?;
        for (i, weight) in weights.iter_mut().enumerate().filter(|(i, _)| keep[*i] == 1) {
            let ((p, q), advantage) = (compared.probabilities(i), batch.advantages[i]);
            let side = if advantage == 0.0 { 0.0 } else { advantage.signum() };
            *weight = (1.0 - side * (p - q) / self.delta).max(0.0);
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::positive("delta", self.delta)
    }
}

register!(TokenWeight, Drpo, "masks.drpo", "lets tokens count the less the further they have moved", {
    delta = delta() => "change of a token's probability at which it counts for nothing"; 1e-4..1.0,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
