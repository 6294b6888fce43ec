//! Reduces the weight of improbable tokens, whose large gradients dominate those of other tokens.
//!
//! p is the token's probability when it was sampled, as computed by the trainer. The weight is
//! `alpha` p + 1 − `alpha`.
//!
//! Yang et al., *Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs*, arXiv 2505.12929,
//! advantage reweighting; AR-Lopti, `compute_reweight_advantage` (`both_linear`,
//! `reweight_k = alpha`, `reweight_tau = 1 - alpha`).

use capo_plugin::prelude::*;

use crate::{checks, tokens};

/// The strength of the reduction.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LowProbability {
    #[serde(default = "alpha")]
    alpha: f64,
}

fn alpha() -> f64 {
    0.3
}

impl Weight for LowProbability {
    fn weigh(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        token_mask: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        let old = batch.old_logps()?;
        for (i, weight) in weights
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| token_mask[*i] == 1)
        {
            *weight = (self.alpha * f64::from(old[i]).exp() + 1.0 - self.alpha) as f32;
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS
    }

    fn traits(&self) -> Traits {
        tokens::ALONE
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("alpha", self.alpha)
    }
}

register!(Weight, LowProbability, "masks.low-probability", "lets improbable tokens count less", {
    alpha = alpha() => "0: not at all less; 1: in proportion to their probability"; 0.0..1.0,
});
