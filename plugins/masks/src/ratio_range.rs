//! Drops tokens whose ratio lies outside a range, whichever way the step would push them: PPO's clip without its sides.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies};
use crate::{checks, tokens};

/// A range of ratios.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RatioRange {
    /// Smallest ratio kept; as far below 1 as `high` is above it when absent.
    low: Option<f32>,
    /// Largest ratio kept.
    #[serde(default = "high")]
    high: f32,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_old")]
    policies: Policies,
}

fn high() -> f32 {
    1.2
}

impl RatioRange {
    fn low(&self) -> f32 {
        self.low.unwrap_or(2.0 - self.high)
    }
}

impl PreBackwardMask for RatioRange {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(ctx, batch)?.log_ratios();
        tokens::drop_where(keep, |i| !(self.low()..=self.high).contains(&log_ratios[i].exp()));
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::bound("low", self.low.unwrap_or_default())?;
        checks::range(("low", self.low()), ("high", self.high))
    }
}

register!(PreBackwardMask, RatioRange, "masks.ratio-range", "drops tokens whose ratio lies outside a range", {
    high = high() => "largest ratio kept"; 1.00001..100.0,
    low = None::<f32> => "smallest ratio kept; as far below 1 as `high` is above it when absent",
    policies = Policies::TrainerOld => policies::ABOUT,
});
