//! An advantage estimator that compares a completion with the others of its group.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Reward minus the mean reward of the group's other completions, clamped to `±max_advantage`.
///
/// The fields with `#[key]` are the keys of its table in a config.
#[component(Advantage, id = "plugin-name.advantage")]
struct LeaveOneOut {
    /// Largest advantage, reward units.
    #[key(default = 10.0, above = 0)]
    max_advantage: f32,
}

impl Advantage for LeaveOneOut {
    fn estimate(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        let mut limited = 0;
        for group in batch.dims.groups() {
            let sum: f32 = batch.rewards[group.clone()].iter().sum();
            let others = (group.len() - 1).max(1) as f32;
            for b in group {
                let reward = batch.rewards[b];
                let advantage = reward - (sum - reward) / others;
                let value = advantage.clamp(-self.max_advantage, self.max_advantage);
                limited += usize::from(value != advantage);
                for i in batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1) {
                    advantages[i] = value;
                }
            }
        }
        ctx.record(
            "advantage_limited",
            limited as f64 / batch.rewards.len() as f64,
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests;
