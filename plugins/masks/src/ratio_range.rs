//! Drops tokens whose ratio is outside a range, whatever the direction of the step: PPO's clip
//! without its one-sidedness.

use capo_plugin::prelude::*;

use crate::checks;
use crate::policies::{self, Policies};
use crate::rated::{self, Bounded, Rated};

/// Range of the ratios to keep.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RatioRange {
    low: Option<f32>,
    high: Option<f32>,
    target_rejection_rate: Option<f64>,
    #[serde(default = "Policies::trainer_old")]
    policies: Policies,
}

const HIGH: f32 = 1.2;

impl RatioRange {
    fn low(&self) -> f32 {
        self.low.unwrap_or(2.0 - self.high())
    }

    fn high(&self) -> f32 {
        self.high.unwrap_or(HIGH)
    }
}

impl Bounded for RatioRange {
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (self.target_rejection_rate, self.high.map(|_| "high"))
    }

    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        let size = |log_ratio: f32| match self.low {
            Some(low) => policies::above_one(log_ratio.exp(), low),
            None => policies::above_one(log_ratio.exp(), f32::NEG_INFINITY).abs(),
        };
        Ok(log_ratios.into_iter().map(size).collect())
    }

    fn limit(&self, _: f32) -> f64 {
        f64::from(self.high()) - 1.0
    }

    fn as_key(&self, limit: f64) -> f64 {
        1.0 + limit
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("low", self.low.unwrap_or_default())?;
        checks::range(("low", self.low()), ("high", self.high()))
    }
}

register!(Mask, Rated<RatioRange>, "masks.ratio-range", "drops tokens whose ratio lies outside a range", {
    high = HIGH => "largest ratio kept"; 1.00001..100.0,
    low = None::<f32> => "smallest ratio kept; as far below 1 as `high` is above it when absent",
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerOld => policies::ABOUT,
});
