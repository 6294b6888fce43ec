//! REINFORCE: the plain or the standardised reward.

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use super::{fill, rewards, standardize};

/// The reward itself (REINFORCE without a baseline), or `(reward − mean) / (std + 1e-4)` over all
/// completions of the step.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardAsAdvantage {
    #[serde(default)]
    normalize_advantages: bool,
}

impl RewardAsAdvantage {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        normalize_advantages = false => "standardise rewards over the step",
    };
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
