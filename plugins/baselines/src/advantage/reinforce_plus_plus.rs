//! REINFORCE++: the return of each token, standardised over all tokens of the step.

use capo_plugin::prelude::*;

use super::{center, log_ratios_to_reference, reference_inputs};

/// Baseline that is subtracted from a completion's reward.
#[derive(Choice, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// No baseline: a token's return is the discounted sum of its own and later rewards (verl
    /// `reinforce_plus_plus`).
    None,
    /// The group's mean: each token's return is the completion's whole reward (verl
    /// `reinforce_plus_plus_baseline`).
    Group,
}

/// Returns minus their mean, divided by their standard deviation, both over all tokens of the step.
///
/// A token's reward is `−beta · (old_logp − ref_logp)`; the last token also gets the completion's
/// reward.
#[keys]
#[derive(Debug, Clone)]
pub struct ReinforcePlusPlus {
    /// What is subtracted from a completion's reward: nothing, or the mean reward of its group.
    #[key(default = Baseline::None)]
    baseline: Baseline,
    /// Discount per token.
    #[key(default = 1.0, at_least = 0, at_most = 1)]
    gamma: f32,
    /// Weight of the distance from the reference model in the reward; 0 needs no reference model.
    #[key(default = 0.0, at_least = 0)]
    beta: f32,
}

/// verl's term that is added to a variance before its square root.
const LEAST_VARIANCE: f64 = 1e-8;

impl ReinforcePlusPlus {
    /// `[B, T]`: reward of each token; the last token also gets the completion's reward.
    fn token_rewards(&self, batch: &Batch<'_>) -> Result<Vec<f64>, PluginError> {
        let mut rewards = vec![0.0; batch.dims.len()];
        let distance = if self.beta > 0.0 {
            Some(log_ratios_to_reference(batch)?)
        } else {
            None
        };
        for (b, reward) in batch.rewards.iter().enumerate() {
            let mut last = None;
            for i in batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1) {
                rewards[i] = distance
                    .as_ref()
                    .map_or(0.0, |distance| -f64::from(self.beta) * distance(i));
                last = Some(i);
            }
            if let Some(i) = last {
                rewards[i] += f64::from(*reward);
            }
        }
        Ok(rewards)
    }

    /// Replaces each token's reward by its return.
    fn add_later(&self, batch: &Batch<'_>, values: &mut [f64]) {
        for b in 0..batch.dims.completions as usize {
            let mut later = 0.0;
            for i in batch
                .dims
                .row(b)
                .rev()
                .filter(|&i| batch.completion_mask[i] == 1)
            {
                later = values[i] + f64::from(self.gamma) * later;
                values[i] = later;
            }
        }
    }
}

/// Replaces each token's reward by the completion's sum, minus the mean of such sums over the
/// group.
fn center_sums(batch: &Batch<'_>, values: &mut [f64]) {
    let completions = batch.dims.completions as usize;
    let mut sums: Vec<f64> = (0..completions)
        .map(|b| values[batch.dims.row(b)].iter().sum())
        .collect();
    // A group of one keeps its reward, as in verl.
    center(
        &mut sums,
        batch.dims.groups().filter(|group| group.len() > 1),
    );
    for (b, sum) in sums.into_iter().enumerate() {
        values[batch.dims.row(b)].fill(sum);
    }
}

impl Advantage for ReinforcePlusPlus {
    fn estimate(
        &mut self,
        _ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        let mut values = self.token_rewards(batch)?;
        match self.baseline {
            Baseline::None => self.add_later(batch, &mut values),
            Baseline::Group => center_sums(batch, &mut values),
        }
        let real = || (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1);
        let (mean, std) = super::mean_and_std(&real().map(|i| values[i]).collect::<Vec<_>>());
        let divisor = (std * std + LEAST_VARIANCE).sqrt();
        real().for_each(|i| advantages[i] = ((values[i] - mean) / divisor) as f32);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        if self.baseline == Baseline::Group && self.gamma != 1.0 {
            return Err(PluginError::config(format!(
                "`gamma` is {}, but `baseline` is `group`, where each token has the whole reward \
                 (remove one of them)",
                self.gamma
            )));
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        reference_inputs(self.beta)
    }
}
