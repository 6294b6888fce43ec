//! GRPO and Dr.GRPO: a completion's reward relative to other completions of its prompt.

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};
use serde::Serialize;

use super::{center, fill, mean_and_std, rewards, standardize};
use crate::checks;

/// Divisor of centred rewards (TRL `scale_rewards`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The standard deviation of the completion's group.
    #[default]
    Group,
    /// The standard deviation of all rewards of the step.
    Batch,
    /// No division.
    None,
}

/// Combination of several reward functions into one advantage (TRL `multi_objective_aggregation`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// The weighted sum of rewards is normalised.
    #[default]
    SumThenNormalize,
    /// Each reward is normalised within its group. The sum with `reward_weights` is then normalised
    /// over the step (GDPO).
    NormalizeThenSum,
}

/// `(reward − mean of its group) / (std + epsilon)` with an unbiased std (GRPO; TRL
/// `scale_rewards`).
///
/// A group of one, or a group with equal rewards, gets zeros.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupNormalized {
    #[serde(default = "default_epsilon")]
    epsilon: f32,
    #[serde(default)]
    scale_rewards: ScaleRewards,
    #[serde(default)]
    multi_objective_aggregation: Aggregation,
    reward_weights: Option<Vec<f32>>,
}

fn default_epsilon() -> f32 {
    1e-4
}

impl GroupNormalized {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        epsilon = default_epsilon() => "added to the standard deviation, reward units",
        scale_rewards = ScaleRewards::default() => "whose standard deviation divides: of the `group`, of the `batch`, or `none`",
        multi_objective_aggregation = Aggregation::default() => "`sum_then_normalize`, or `normalize_then_sum`: each reward is normalised before they are summed",
        reward_weights = None::<Vec<f32>> => "weights of that sum, in the order of `[[reward]]`; in `host` the `weight` of each when absent",
    };

    /// Subtracts the group's mean from each of `values`, then divides as `scale_rewards` says.
    fn normalize(&self, batch: &Batch<'_>, values: &mut [f64]) {
        let (_, of_all) = mean_and_std(values);
        for group in batch.dims.groups() {
            let (mean, of_group) = mean_and_std(&values[group.clone()]);
            let divisor = match self.scale_rewards {
                ScaleRewards::Group => of_group + f64::from(self.epsilon),
                ScaleRewards::Batch => of_all + f64::from(self.epsilon),
                ScaleRewards::None => 1.0,
            };
            // Without `epsilon`, equal rewards have a divisor of 0.
            values[group].iter_mut().for_each(|value| {
                *value = if divisor > 0.0 {
                    (*value - mean) / divisor
                } else {
                    0.0
                }
            });
        }
    }

    /// Weighted sum of all rewards, each normalised within its group.
    fn sum_of_normalized(&self, batch: &Batch<'_>) -> Result<Vec<f64>, PluginError> {
        let context = batch.rollout_context()?;
        let count = context.reward_names().count();
        let weights = self
            .reward_weights
            .clone()
            .unwrap_or_else(|| vec![1.0; count]);
        if weights.len() != count {
            let given = weights.len();
            return Err(PluginError::config(format!(
                "`reward_weights` has {given} numbers, but the run has {count} rewards (give one for each `[[reward]]`, in their order)"
            )));
        }
        let mut sum = vec![0.0; batch.dims.completions as usize];
        for (reward, weight) in weights.iter().enumerate() {
            let mut values: Vec<f64> = context
                .rewards(reward)
                .iter()
                .map(|&value| f64::from(value))
                .collect();
            self.normalize(batch, &mut values);
            sum.iter_mut()
                .zip(values)
                .for_each(|(sum, value)| *sum += f64::from(*weight) * value);
        }
        Ok(sum)
    }
}

impl Advantage for GroupNormalized {
    fn estimate(
        &mut self,
        _: &mut Ctx<'_>,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        let values = match self.multi_objective_aggregation {
            Aggregation::SumThenNormalize => {
                let mut values = rewards(batch);
                self.normalize(batch, &mut values);
                values
            }
            Aggregation::NormalizeThenSum => {
                let mut values = self.sum_of_normalized(batch)?;
                standardize(&mut values);
                values
            }
        };
        fill(batch, &values, advantages);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::not_negative("epsilon", self.epsilon)?;
        let sums_first = self.multi_objective_aggregation == Aggregation::SumThenNormalize;
        if sums_first && self.reward_weights.is_some() {
            return Err(PluginError::config(
                "`reward_weights` is set, but `multi_objective_aggregation` is `sum_then_normalize`, which has no use for it (set `weight` of each `[[reward]]`, or `normalize_then_sum`)",
            ));
        }
        if !sums_first && self.scale_rewards != ScaleRewards::Group {
            return Err(PluginError::config(
                "`scale_rewards` is set, but `multi_objective_aggregation` is `normalize_then_sum`, which normalises by group and by batch (remove one of them)",
            ));
        }
        match self
            .reward_weights
            .iter()
            .flatten()
            .find(|weight| !weight.is_finite())
        {
            None => Ok(()),
            Some(weight) => Err(PluginError::config(format!(
                "`reward_weights` holds {weight} (use finite numbers)"
            ))),
        }
    }

    fn inputs(&self) -> Inputs {
        match self.multi_objective_aggregation {
            Aggregation::SumThenNormalize => Inputs::NONE,
            Aggregation::NormalizeThenSum => Inputs::ROLLOUT_CONTEXT,
        }
    }
}

/// `reward − mean of its group` (Dr.GRPO; TRL `scale_rewards="none"`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupCentered {}

impl Advantage for GroupCentered {
    fn estimate(
        &mut self,
        _ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        let mut values = rewards(batch);
        center(&mut values, batch.dims.groups());
        fill(batch, &values, advantages);
        Ok(())
    }
}
