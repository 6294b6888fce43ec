//! REINFORCE: the plain or the standardised reward.

use capo_plugin::prelude::*;

use super::{fill, rewards, standardize};

/// The reward itself (REINFORCE without a baseline), or `(reward − mean) / (std + 1e-4)` over all
/// completions of the step.
#[keys]
#[derive(Debug, Clone)]
pub struct RewardAsAdvantage {
    /// Standardise rewards over the step.
    #[key(default = false)]
    normalize_advantages: bool,
}

impl Advantage for RewardAsAdvantage {
    fn estimate(
        &mut self,
        _ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        let mut values = rewards(batch);
        if self.normalize_advantages {
            standardize(&mut values);
        }
        fill(batch, &values, advantages);
        Ok(())
    }
}
