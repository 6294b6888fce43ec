//! GRPO and Dr.GRPO: a completion's reward relative to other completions of its prompt.

use capo_plugin::prelude::*;

use super::{center, fill, mean_and_std, rewards, standardize};

/// The scope of the standard deviation that divides centred rewards (TRL `scale_rewards`).
#[derive(Choice, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleRewards {
    /// The standard deviation of the completion's group.
    Group,
    /// The standard deviation of all rewards of the step.
    Batch,
    /// No division.
    None,
}

/// Combination of several reward functions into one advantage (TRL `multi_objective_aggregation`).
#[derive(Choice, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregation {
    /// The weighted sum of rewards is normalised.
    SumThenNormalize,
    /// Each reward is normalised within its group. The sum with `reward_weights` is then normalised
    /// over the step (GDPO).
    NormalizeThenSum,
}

/// `(reward − mean of its group) / (std + epsilon)` with an unbiased std (GRPO; TRL
/// `scale_rewards`).
///
/// A group of one, or a group with equal rewards, gets zeros.
#[keys]
#[derive(Debug, Clone)]
pub struct GroupNormalized {
    /// Added to the standard deviation, reward units.
    #[key(default = 1e-4, at_least = 0)]
    epsilon: f32,
    /// The scope of the standard deviation that divides.
    #[key(default = ScaleRewards::Group)]
    scale_rewards: ScaleRewards,
    /// Whether rewards are normalised before or after they are summed.
    #[key(default = Aggregation::SumThenNormalize)]
    multi_objective_aggregation: Aggregation,
    /// Weights of the sum of normalised rewards, in the order of `[[reward]]`; when absent in
    /// `host` the `weight` of each.
    #[key]
    reward_weights: Option<Vec<f32>>,
}

impl GroupNormalized {
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
                "`reward_weights` has {given} numbers, but the run has {count} rewards (give one \
                 for each `[[reward]]`, in their order)"
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
        let sums_first = self.multi_objective_aggregation == Aggregation::SumThenNormalize;
        if sums_first && self.reward_weights.is_some() {
            return Err(PluginError::config(
                "`reward_weights` is set, but `multi_objective_aggregation` is \
                 `sum_then_normalize`, which has no use for it (set `weight` of each `[[reward]]`, \
                 or `normalize_then_sum`)",
            ));
        }
        if !sums_first && self.scale_rewards != ScaleRewards::Group {
            return Err(PluginError::config(
                "`scale_rewards` is set, but `multi_objective_aggregation` is \
                 `normalize_then_sum`, which normalises by group and by batch (remove one of them)",
            ));
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        match self.multi_objective_aggregation {
            Aggregation::SumThenNormalize => Inputs::NONE,
            Aggregation::NormalizeThenSum => Inputs::ROLLOUT_CONTEXT,
        }
    }
}

/// `reward − mean of its group` (Dr.GRPO; TRL `scale_rewards="none"`).
#[keys]
#[derive(Debug, Clone)]
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
