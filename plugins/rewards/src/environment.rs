//! The reward `environment`: what a run's environment gave in the turns of an episode.

use capo_plugin::prelude::*;

/// The sum of the rewards that the environment gave in an episode.
#[component(Reward, id = "environment")]
struct OfEnvironment {}

impl Reward for OfEnvironment {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        crate::each(rollout, rewards, |completion| completion.environment_reward);
        Ok(())
    }
}
