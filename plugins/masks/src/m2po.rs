//! M2PO: drops the tokens on which trainer and sampler differ most, until the others have a small
//! second moment.
//!
//! d = ln q − ln p. The tokens with the largest d² are dropped one by one, until the mean of d²
//! over the others is below `m2_threshold`. The last token stays even if its d² is larger, because
//! AReaL's code drops all tokens but one. Sums go from the smallest d² up, so that no infinite one
//! is ever subtracted.
//!
//! Zheng et al., *Prosperity before Collapse*, arXiv 2510.01161; AReaL, `trainer/ppo/actor.py`,
//! `m2_threshold`.

use capo_plugin::prelude::*;

use crate::policies::Policies;
use crate::tokens;

/// Drops the tokens on which trainer and sampler differ most.
#[component(Mask, id = "masks.m2po")]
struct M2po {
    /// The mean square of `ln q - ln p` of the tokens that stay is below this, nats².
    #[key(default = 0.04, above = 0, search = 1e-9..=10.0)]
    m2_threshold: f64,
    #[key(default = Policies::OldSampler)]
    policies: Policies,
}

/// Square of a log-ratio. The sign of NaN is removed, so that NaN is sorted to the end, like
/// infinity.
fn square(log_ratio: f32) -> f64 {
    f64::from(log_ratio).powi(2).abs()
}

impl Mask for M2po {
    fn mask(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        let mut ranked = tokens::left(token_mask);
        ranked.sort_by(|&a, &b| square(log_ratios[a]).total_cmp(&square(log_ratios[b])));
        let mut sum = 0.0;
        let mut kept = 0;
        for i in ranked {
            let with = sum + square(log_ratios[i]);
            if kept == 0 || with < self.m2_threshold * f64::from(kept + 1) {
                sum = with;
                kept += 1;
            } else {
                token_mask[i] = 0;
            }
        }
        ctx.record("second_moment", sum / f64::from(kept.max(1)));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}
