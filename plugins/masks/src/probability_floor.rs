//! Drops tokens that the policy considers improbable, because their gradients are large.

use capo_plugin::prelude::*;

use crate::rated::{Bounded, Rated};

/// Drops tokens below a probability.
#[component(Mask, id = "masks.probability-floor", within = Rated)]
struct ProbabilityFloor {
    /// Smallest probability that is kept.
    #[key(
        default = 0.01,
        at_least = 0,
        at_most = 1,
        search = 1e-9..=0.9,
        not_with = "target_rejection_rate"
    )]
    min_probability: f64,
}

impl Bounded for ProbabilityFloor {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        // A floor of 0 keeps even what has the probability 0.
        Ok(batch
            .logps
            .iter()
            .map(|&logp| f64::from(logp).exp().recip().min(f64::MAX))
            .collect())
    }

    fn limit(&self, _: f32) -> f64 {
        self.min_probability.recip()
    }

    fn as_key(&self, limit: f64) -> f64 {
        limit.recip()
    }

    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }
}
