//! IPO: drops tokens whose probability has moved too far, whatever the direction of the step.
//!
//! p is the token's probability under the trainer, q under the sampler. A token is dropped if abs(p
//! − q) > `ipo_threshold`.
//!
//! prime-rl, `trainer/rl/loss.py`, loss type `ipo`.

use capo_plugin::prelude::*;

use crate::policies::Policies;
use crate::rated::{Bounded, Rated};

/// Drops tokens whose probability has moved too far, either way.
#[component(Mask, id = "masks.ipo", within = Rated)]
struct Ipo {
    /// How far a token's probability may have moved.
    #[key(
        default = 0.1,
        at_least = 0,
        infinite,
        search = 1e-6..=1.0,
        not_with = "target_rejection_rate"
    )]
    ipo_threshold: f32,
    #[key(default = Policies::TrainerSampler)]
    policies: Policies,
}

impl Bounded for Ipo {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let compared = self.policies.compare(batch)?;
        let tokens = 0..batch.dims.len();
        Ok(tokens
            .map(|i| {
                let (p, q) = compared.probabilities(i);
                f64::from((p - q).abs())
            })
            .collect())
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.ipo_threshold)
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }
}
