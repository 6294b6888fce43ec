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

use crate::policies::{self, Policies};
use crate::{checks, tokens};

/// A bound on a mean over the batch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct M2po {
    #[serde(default = "threshold")]
    m2_threshold: f64,
    #[serde(default = "Policies::old_sampler")]
    policies: Policies,
}

fn threshold() -> f64 {
    0.04
}

impl Mask for M2po {
    fn mask(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        // Without the sign of NaN, which therefore comes last, as what is infinite does.
        let square = |i: usize| f64::from(log_ratios[i]).powi(2).abs();
        let mut ranked = tokens::left(token_mask);
        ranked.sort_by(|&a, &b| square(a).total_cmp(&square(b)));
        let (mut sum, mut kept) = (0.0, 0);
        for i in ranked {
            let with = sum + square(i);
            if kept == 0 || with < self.m2_threshold * f64::from(kept + 1) {
                (sum, kept) = (with, kept + 1);
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

    fn validate(&self) -> Result<(), PluginError> {
        checks::positive("m2_threshold", self.m2_threshold as f32)
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}

register!(Mask, M2po, "masks.m2po", "drops the tokens on which trainer and sampler differ most", {
    m2_threshold = threshold() => "the mean square of `ln q - ln p` of what stays is below it, nats²"; 1e-9..10.0,
    policies = Policies::OldSampler => policies::ABOUT,
});
