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
use crate::rated::{self, Bounded, Rated};

/// Range of the ratios to keep.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IcePop {
    #[serde(default = "alpha")]
    alpha: f32,
    beta: Option<f32>,
    target_rejection_rate: Option<f64>,
    #[serde(default = "Policies::old_sampler")]
    policies: Policies,
}

fn alpha() -> f32 {
    0.5
}

const BETA: f32 = 5.0;

impl IcePop {
    fn beta(&self) -> f32 {
        self.beta.unwrap_or(BETA)
    }
}

impl Bounded for IcePop {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (self.target_rejection_rate, self.beta.map(|_| "beta"))
    }

    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        Ok(log_ratios
            .into_iter()
            .map(|log_ratio| policies::above_one(log_ratio.exp(), self.alpha))
            .collect())
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.beta()) - 1.0
    }

    fn as_key(&self, limit: f64) -> f64 {
        1.0 + limit
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("alpha", self.alpha)?;
        checks::range(("alpha", self.alpha), ("beta", self.beta()))
    }
}

register!(Mask, Rated<IcePop>, "masks.icepop", "drops tokens on which trainer and sampler disagree", {
    alpha = alpha() => "smallest ratio kept",
    beta = BETA => "largest ratio kept"; 1.00001..1000.0,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::OldSampler => policies::ABOUT,
});
