//! Advantages from rewards, one file for each kind of baseline.

mod group;
mod leave_one_out;
mod reinforce;
mod reinforce_plus_plus;

use std::ops::Range;

use capo_plugin::prelude::*;

pub use group::{Aggregation, GroupCentered, GroupNormalized, ScaleRewards};
pub use leave_one_out::LeaveOneOut;
pub use reinforce::RewardAsAdvantage;
pub use reinforce_plus_plus::{Baseline, ReinforcePlusPlus};

/// TRL's term that is added to a standard deviation before division, reward units.
const EPSILON: f64 = 1e-4;

/// Writes `values[b]` to every token of completion `b`.
fn fill(batch: &Batch<'_>, values: &[f64], advantages: &mut [f32]) {
    for (b, value) in values.iter().enumerate() {
        for i in batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1) {
            advantages[i] = *value as f32;
        }
    }
}

fn rewards(batch: &Batch<'_>) -> Vec<f64> {
    batch
        .rewards
        .iter()
        .map(|&reward| f64::from(reward))
        .collect()
}

/// Subtracts `baseline` of its group from each value.
fn center(values: &mut [f64], groups: impl Iterator<Item = Range<usize>>) {
    for group in groups {
        let (mean, _) = mean_and_std(&values[group.clone()]);
        values[group].iter_mut().for_each(|value| *value -= mean);
    }
}

/// Replaces each value by `(value − mean) / (std + EPSILON)`, both over all values.
fn standardize(values: &mut [f64]) {
    let (mean, std) = mean_and_std(values);
    values
        .iter_mut()
        .for_each(|value| *value = (*value - mean) / (std + EPSILON));
}

/// Mean and unbiased standard deviation, which is 0 for a single value.
fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let n = (values.len() as f64).max(1.0);
    let mean = values.iter().sum::<f64>() / n;
    let squares = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

/// `logp − ref_logp` of a token under the sampling policy, nats: the estimate k1 of the divergence
/// from the reference.
fn log_ratios_to_reference<'a>(
    batch: &Batch<'a>,
) -> Result<impl Fn(usize) -> f64 + use<'a>, PluginError> {
    let old_logps = batch.old_logps()?;
    let ref_logps = batch.ref_logps()?;
    Ok(move |i: usize| f64::from(old_logps[i]) - f64::from(ref_logps[i]))
}

/// Inputs that [`log_ratios_to_reference`] needs, if `beta` is not 0.
fn reference_inputs(beta: f32) -> Inputs {
    if beta > 0.0 {
        Inputs::OLD_LOGPS | Inputs::REF_LOGPS
    } else {
        Inputs::NONE
    }
}

#[cfg(test)]
mod tests;
