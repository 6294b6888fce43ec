//! Off-policy sequence masking: in completions from which the policy has drifted, drops the tokens
//! with a negative advantage.
//!
//! A completion has drifted if the mean over its tokens of ln q − ln p exceeds
//! `off_policy_mask_threshold`; p is the probability under the trainer, q under the sampler. Tokens
//! with a positive advantage are always kept.
//!
//! DeepSeek-V3.2, arXiv 2512.02556, equation 9, which gives no value for the threshold; TRL,
//! `off_policy_mask_threshold` (`get_off_policy_mask`; "0.5, for example"); slime, `--use-opsm`
//! (1e-4); ms-swift, `off_policy_sequence_mask_delta`.

use capo_plugin::prelude::*;

use crate::policies::Policies;
use crate::rated::{Bounded, Rated};
use crate::sequence;

/// Drops what went wrong in completions that the policy has left.
#[component(Mask, id = "masks.off-policy-sequence", within = Rated)]
struct OffPolicySequence {
    /// Largest mean of `ln q - ln p` of a completion that is kept whole, nats.
    #[key(
        default = 0.5,
        at_least = 0,
        infinite,
        search = 1e-6..=10.0,
        not_with = "target_rejection_rate"
    )]
    off_policy_mask_threshold: f32,
    #[key(default = Policies::TrainerSampler)]
    policies: Policies,
}

impl Bounded for OffPolicySequence {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        let mut sizes = vec![0.0; batch.dims.len()];
        for (row, mean) in sequence::by_completion(batch, &log_ratios, sequence::mean) {
            for (size, advantage) in sizes[row.clone()].iter_mut().zip(&batch.advantages[row]) {
                *size = if *advantage >= 0.0 { 0.0 } else { -mean };
            }
        }
        Ok(sizes)
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.off_policy_mask_threshold)
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}
