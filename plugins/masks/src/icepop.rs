//! IcePop: drops tokens on which trainer and sampler disagree.
//!
//! r = p / q is the ratio of the two probabilities. A token is dropped if r < `alpha` or r >
//! `beta`. The sources also multiply each kept token by r. For that, use the weight `masks.tis`
//! with `rollout_is_threshold_lower = alpha` and `rollout_is_threshold = beta`. It drops the same
//! tokens, so it can replace this mask.
//!
//! Ling team, *Every Step Evolves*, arXiv 2510.18855; slime, `megatron_utils/loss.py`,
//! `icepop_function`; NeMo RL, `truncated_importance_sampling_type = "icepop"`; verl,
//! `rollout_is_threshold = "0.5_5.0"`.

use capo_plugin::prelude::*;

use crate::checks;
use crate::policies::{self, Policies};
use crate::rated::{Bounded, Rated};

/// Drops tokens on which trainer and sampler disagree.
#[component(Mask, id = "masks.icepop", within = Rated)]
struct IcePop {
    /// Smallest ratio that is kept.
    #[key(default = 0.5, at_least = 0, infinite)]
    alpha: f32,
    /// Largest ratio that is kept.
    #[key(default = 5.0, infinite, search = 1.00001..=1000.0, not_with = "target_rejection_rate")]
    beta: f32,
    #[key(default = Policies::OldSampler)]
    policies: Policies,
}

impl Bounded for IcePop {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        Ok(log_ratios
            .into_iter()
            .map(|log_ratio| policies::above_one(log_ratio.exp(), self.alpha))
            .collect())
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.beta) - 1.0
    }

    fn as_key(&self, limit: f64) -> f64 {
        1.0 + limit
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self, _: bool) -> Result<(), PluginError> {
        checks::ordered([("alpha", self.alpha), ("beta", self.beta)])
    }
}
