//! RLOO: a completion's reward relative to the mean of the others of its prompt.

use capo_plugin::prelude::*;

use super::{fill, log_ratios_to_reference, reference_inputs, rewards, standardize};

/// `reward − mean of the other rewards of its group` (TRL `RLOOTrainer`); a group of one gets zero.
///
/// With `beta`, the reward is first reduced by `beta` times the sum over the completion of
/// `old_logp − ref_logp`.
#[keys]
#[derive(Debug, Clone)]
pub struct LeaveOneOut {
    /// Standardise advantages over the step.
    #[key(default = false)]
    normalize_advantages: bool,
    /// Smallest and largest reward that counts; no limit when absent.
    #[key]
    reward_clip_range: Option<[f32; 2]>,
    /// Weight of the distance from the reference model in the reward; 0 needs no reference model.
    #[key(default = 0.0, at_least = 0)]
    beta: f32,
}

impl Advantage for LeaveOneOut {
    fn estimate(
        &mut self,
        _ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        let mut values = rewards(batch);
        if let Some([low, high]) = self.reward_clip_range {
            values
                .iter_mut()
                .for_each(|value| *value = value.clamp(f64::from(low), f64::from(high)));
        }
        if self.beta > 0.0 {
            let distance = log_ratios_to_reference(batch)?;
            for (b, value) in values.iter_mut().enumerate() {
                let tokens = batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1);
                *value -= f64::from(self.beta) * tokens.map(&distance).sum::<f64>();
            }
        }
        for group in batch.dims.groups() {
            let sum: f64 = values[group.clone()].iter().sum();
            let others = group.len() as f64 - 1.0;
            for value in &mut values[group] {
                *value = if others > 0.0 {
                    *value - (sum - *value) / others
                } else {
                    0.0
                };
            }
        }
        if self.normalize_advantages {
            standardize(&mut values);
        }
        fill(batch, &values, advantages);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        match self.reward_clip_range {
            Some([low, high]) if low > high => Err(PluginError::config(format!(
                "`reward_clip_range` is [{low}, {high}] (write the smaller number first)"
            ))),
            _ => Ok(()),
        }
    }

    fn inputs(&self) -> Inputs {
        reference_inputs(self.beta)
    }
}
