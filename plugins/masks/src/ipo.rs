//! IPO: drops tokens whose probability has moved too far, whatever the direction of the step.
//!
//! p is the token's probability under the trainer, q under the sampler. A token is dropped if abs(p
//! − q) > `ipo_threshold`.
//!
//! prime-rl, `trainer/rl/loss.py`, loss type `ipo`.

use capo_plugin::prelude::*;

use crate::checks;
use crate::policies::{self, Policies};
use crate::rated::{self, Bounded, Rated};

/// A bound on changes in both directions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ipo {
    ipo_threshold: Option<f32>,
    target_rejection_rate: Option<f64>,
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

const THRESHOLD: f32 = 0.1;

impl Bounded for Ipo {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (
            self.target_rejection_rate,
            self.ipo_threshold.map(|_| "ipo_threshold"),
        )
    }

    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = self.policies.compare(batch)?;
        let size = |i: usize| {
            let (p, q) = compared.probabilities(i);
            f64::from((p - q).abs())
        };
        Ok((0..batch.dims.len()).map(size).collect())
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.ipo_threshold.unwrap_or(THRESHOLD))
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("ipo_threshold", self.ipo_threshold.unwrap_or_default())
    }
}

register!(Mask, Rated<Ipo>, "masks.ipo", "drops tokens whose probability has moved too far, either way", {
    ipo_threshold = THRESHOLD => "how far a token's probability may have moved"; 1e-6..1.0,
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
