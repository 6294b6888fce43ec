//! DRPO in its weight form: DPPO-Binary-TV with a smooth boundary.
//!
//! p is the token's probability under the trainer, q under the sampler. The weight is 1 − sign(A)
//! (p − q) / `delta`. It falls to 0 where the token has moved by `delta` in the direction of the
//! step, and exceeds 1 where the step would move it back. Beyond `delta` the paper's factor is
//! negative and pulls back; a token weight cannot be negative, so it is 0 there.
//!
//! Yao et al., *Rethinking the Divergence Regularization in LLM RL*, arXiv 2606.09821 (no code is
//! public; `delta` is DPPO's bound).

use capo_plugin::prelude::*;

use crate::policies::Policies;
use crate::tokens;

/// Lets tokens count the less the further they have moved.
#[component(Weight, id = "masks.drpo")]
struct Drpo {
    /// Change of a token's probability at which it counts for nothing.
    #[key(default = 0.2, above = 0, search = 1e-4..=1.0)]
    delta: f32,
    #[key(default = Policies::TrainerSampler)]
    policies: Policies,
}

impl Weight for Drpo {
    fn weigh(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        token_mask: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        let compared = self.policies.compare(batch)?;
        for (i, weight) in weights
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| token_mask[*i] == 1)
        {
            let ((p, q), advantage) = (compared.probabilities(i), batch.advantages[i]);
            let side = if advantage == 0.0 {
                0.0
            } else {
                advantage.signum()
            };
            *weight = (1.0 - side * (p - q) / self.delta).max(0.0);
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> Traits {
        tokens::ALONE
    }
}
