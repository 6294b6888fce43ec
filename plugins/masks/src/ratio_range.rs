//! Drops tokens whose ratio is outside a range, whatever the direction of the step: PPO's clip
//! without its one-sidedness.

use capo_plugin::prelude::*;

use crate::checks;
use crate::policies::{self, Policies};
use crate::rated::{Bounded, Rated};

/// Drops tokens whose ratio lies outside a range.
#[component(Mask, id = "masks.ratio-range", within = Rated)]
struct RatioRange {
    /// Largest ratio that is kept.
    #[key(default = 1.2, infinite, search = 1.00001..=100.0, not_with = "target_rejection_rate")]
    high: f32,
    /// Smallest ratio that is kept; when absent as far below 1 as `high` is above it.
    #[key(at_least = 0, infinite)]
    low: Option<f32>,
    #[key(default = Policies::TrainerOld)]
    policies: Policies,
}

impl RatioRange {
    fn low(&self) -> f32 {
        self.low.unwrap_or(2.0 - self.high)
    }
}

impl Bounded for RatioRange {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        Ok(log_ratios
            .into_iter()
            .map(|log_ratio| match self.low {
                Some(low) => policies::above_one(log_ratio.exp(), low),
                None => policies::above_one(log_ratio.exp(), f32::NEG_INFINITY).abs(),
            })
            .collect())
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.high) - 1.0
    }

    fn as_key(&self, limit: f64) -> f64 {
        1.0 + limit
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self, _: bool) -> Result<(), PluginError> {
        checks::ordered([("low", self.low()), ("high", self.high)])
    }
}
