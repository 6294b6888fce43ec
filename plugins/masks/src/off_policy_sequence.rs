//! Off-policy sequence masking: drops the tokens of negative advantage of completions that the policy has left.
//!
//! A completion has drifted where the mean over its tokens of ln q − ln p, with p the trainer's probability and q the sampler's, exceeds
//! `off_policy_mask_threshold`. Its tokens of positive advantage are still learnt.
//!
//! DeepSeek-V3.2, arXiv 2512.02556, equation 9, which does not say its threshold; TRL, `off_policy_mask_threshold` (`get_off_policy_mask`;
//! "0.5, for example"); slime, `--use-opsm` (1e-4); ms-swift, `off_policy_sequence_mask_delta`.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::{checks, sequence};

/// A bound on a completion's drift.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OffPolicySequence {
    /// Largest drift kept, nats per token.
    #[serde(default = "threshold")]
    off_policy_mask_threshold: f32,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

fn threshold() -> f32 {
    0.5
}

impl PreBackwardMask for OffPolicySequence {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(ctx, batch)?.log_ratios();
        for (row, mean) in sequence::by_completion(batch, &log_ratios, sequence::mean) {
            if -mean > f64::from(self.off_policy_mask_threshold) {
                for (keep, advantage) in keep[row.clone()].iter_mut().zip(&batch.advantages[row]) {
                    *keep &= u8::from(*advantage >= 0.0);
                }
            }
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("off_policy_mask_threshold", self.off_policy_mask_threshold)
    }

    fn traits(&self) -> MaskTraits {
        MaskTraits::NO_OPTIMIZER
    }
}

register!(PreBackwardMask, OffPolicySequence, "masks.off-policy-sequence", "drops what went wrong in completions that the policy has left", {
    off_policy_mask_threshold = threshold() => "largest mean of `ln q - ln p` of a completion that is kept whole, nats"; 1e-6..10.0,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
