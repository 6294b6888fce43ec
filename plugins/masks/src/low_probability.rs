//! Reduces the weight of improbable tokens, whose large gradients dominate those of other tokens.
//!
//! p is the token's probability when it was sampled, as computed by the trainer. The weight is
//! `alpha` p + 1 − `alpha`.
//!
//! Yang et al., *Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs*, arXiv 2505.12929,
//! advantage reweighting; AR-Lopti, `compute_reweight_advantage` (`both_linear`,
//! `reweight_k = alpha`, `reweight_tau = 1 - alpha`).

use capo_plugin::prelude::*;

use crate::tokens;

/// Lets improbable tokens count less.
#[component(Weight, id = "masks.low-probability")]
struct LowProbability {
    /// Strength: at 0 all tokens count in full, at 1 in proportion to their probability.
    #[key(default = 0.3, at_least = 0, at_most = 1, search = 0.0..=1.0)]
    alpha: f64,
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
}
