//! Drops tokens that the policy considers improbable, because their gradients are large.

use capo_plugin::prelude::*;

use crate::checks;
use crate::rated::{self, Bounded, Rated};

/// A bound on the probability.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbabilityFloor {
    min_probability: Option<f64>,
    target_rejection_rate: Option<f64>,
}

const FLOOR: f64 = 0.01;

impl Bounded for ProbabilityFloor {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (
            self.target_rejection_rate,
            self.min_probability.map(|_| "min_probability"),
        )
    }

    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        // A floor of 0 keeps even what has the probability 0.
        Ok(batch
            .logps
            .iter()
            .map(|&logp| f64::from(logp).exp().recip().min(f64::MAX))
            .collect())
    }

    fn limit(&self, _: f32) -> f64 {
        self.min_probability.unwrap_or(FLOOR).recip()
    }

    fn as_key(&self, limit: f64) -> f64 {
        limit.recip()
    }

    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("min_probability", self.min_probability.unwrap_or_default())
    }
}

register!(Mask, Rated<ProbabilityFloor>, "masks.probability-floor", "drops tokens below a probability", {
    min_probability = FLOOR => "smallest probability kept"; 1e-9..0.9,
    target_rejection_rate = None::<f64> => rated::ABOUT,
});
