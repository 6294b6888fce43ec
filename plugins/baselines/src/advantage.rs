//! Rewards to advantages, the same value for every token of a completion.

use std::ops::Range;

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

/// `(reward − mean of its group) / (std of its group + epsilon)`, std unbiased (TRL `scale_rewards="group"`).
///
/// A group of one, or one whose rewards are all equal, gets zeros.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupNormalized {
    /// Added to the standard deviation, reward units.
    #[serde(default = "default_epsilon")]
    pub epsilon: f32,
}

fn default_epsilon() -> f32 {
    1e-4
}

impl GroupNormalized {
    /// What its keys mean, for `register!`.
    pub const KEYS: KeyDocs = keys! { epsilon = default_epsilon() => "added to the standard deviation, reward units" };
}

impl AdvantageEstimator for GroupNormalized {
    fn estimate(&mut self, _ctx: &mut Ctx<'_>, batch: &Batch<'_>, advantages: &mut [f32]) -> Result<(), PluginError> {
        for group in batch.dims.groups() {
            let (mean, std) = mean_and_std(&batch.rewards[group.clone()]);
            fill(batch, group, advantages, |reward| {
                ((f64::from(reward) - mean) / (std + f64::from(self.epsilon))) as f32
            });
        }
        Ok(())
    }
}

/// `reward − mean of its group` (Dr.GRPO; TRL `scale_rewards="none"`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupCentered {}

impl AdvantageEstimator for GroupCentered {
    fn estimate(&mut self, _ctx: &mut Ctx<'_>, batch: &Batch<'_>, advantages: &mut [f32]) -> Result<(), PluginError> {
        for group in batch.dims.groups() {
            let (mean, _) = mean_and_std(&batch.rewards[group.clone()]);
            fill(batch, group, advantages, |reward| (f64::from(reward) - mean) as f32);
        }
        Ok(())
    }
}

/// The reward itself (REINFORCE without a baseline).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardAsAdvantage {}

impl AdvantageEstimator for RewardAsAdvantage {
    fn estimate(&mut self, _ctx: &mut Ctx<'_>, batch: &Batch<'_>, advantages: &mut [f32]) -> Result<(), PluginError> {
        fill(batch, 0..batch.dims.completions as usize, advantages, |reward| reward);
        Ok(())
    }
}

/// Writes `value(reward)` to every token of the given completions.
fn fill(batch: &Batch<'_>, completions: Range<usize>, advantages: &mut [f32], value: impl Fn(f32) -> f32) {
    for b in completions {
        let advantage = value(batch.rewards[b]);
        for i in batch.dims.row(b) {
            if batch.completion_mask[i] == 1 {
                advantages[i] = advantage;
            }
        }
    }
}

/// Mean and unbiased standard deviation; the latter is 0 for a single value.
fn mean_and_std(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / n;
    let squares = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{Fixture, advantage};

    fn two_groups() -> Fixture {
        Fixture::new(4, 2).groups_of(2).rewards(&[1.0, 0.0, 1.0, 1.0]).lengths(&[2, 1, 2, 2])
    }

    #[test]
    fn group_normalized_divides_by_the_unbiased_std() {
        let mut component = advantage::<GroupNormalized>("epsilon = 0.0001").unwrap();
        let a = 0.5 / (0.5_f32.sqrt() + 1e-4);
        assert_eq!(two_groups().estimate(&mut component).unwrap(), [a, a, -a, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn group_centered_only_subtracts_the_mean() {
        let mut component = advantage::<GroupCentered>("").unwrap();
        assert_eq!(two_groups().estimate(&mut component).unwrap(), [0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn reward_as_advantage_has_no_baseline() {
        let mut component = advantage::<RewardAsAdvantage>("").unwrap();
        assert_eq!(two_groups().estimate(&mut component).unwrap(), [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_group_of_one_gets_zero() {
        let mut component = advantage::<GroupNormalized>("").unwrap();
        let advantages = Fixture::new(2, 1).groups_of(1).rewards(&[1.0, 0.0]).estimate(&mut component).unwrap();
        assert_eq!(advantages, [0.0, 0.0]);
    }
}
