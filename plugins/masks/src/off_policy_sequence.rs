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

use crate::policies::{self, Policies};
use crate::rated::{self, Bounded, Rated};
use crate::{checks, sequence};

/// A bound on a completion's drift.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OffPolicySequence {
    off_policy_mask_threshold: Option<f32>,
    target_rejection_rate: Option<f64>,
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

const THRESHOLD: f32 = 0.5;

impl Bounded for OffPolicySequence {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (
            self.target_rejection_rate,
            self.off_policy_mask_threshold
                .map(|_| "off_policy_mask_threshold"),
        )
    }

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
        f64::from(self.off_policy_mask_threshold.unwrap_or(THRESHOLD))
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound(
            "off_policy_mask_threshold",
            self.off_policy_mask_threshold.unwrap_or_default(),
        )
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}

register!(Mask, Rated<OffPolicySequence>, "masks.off-policy-sequence", "drops what went wrong in completions that the policy has left", {
    off_policy_mask_threshold = THRESHOLD => "largest mean of `ln q - ln p` of a completion that is kept whole, nats"; 1e-6..10.0,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
