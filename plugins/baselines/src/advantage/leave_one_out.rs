//! RLOO: a completion's reward relative to the mean of the others of its prompt.

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use super::{fill, log_ratios_to_reference, reference_inputs, rewards, standardize};
use crate::checks;

/// `reward − mean of the other rewards of its group` (TRL `RLOOTrainer`); a group of one gets zero.
///
/// With `beta`, the reward is first reduced by `beta` times the sum over the completion of
/// `old_logp − ref_logp`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveOneOut {
    #[serde(default)]
    normalize_advantages: bool,
    reward_clip_range: Option<[f32; 2]>,
    #[serde(default)]
    beta: f32,
}

impl LeaveOneOut {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        normalize_advantages = false => "standardise advantages over the step",
        reward_clip_range = None::<[f32; 2]> => "least and largest reward that counts; no limit when absent",
        beta = 0.0 => "weight of the distance from the reference model in the reward; 0 needs no reference model",
    };
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
            let (sum, others) = (
                values[group.clone()].iter().sum::<f64>(),
                group.len() as f64 - 1.0,
            );
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
        checks::not_negative("beta", self.beta)?;
        match self.reward_clip_range {
            Some([low, high]) if !(low.is_finite() && high.is_finite() && low <= high) => {
                Err(PluginError::config(format!(
                    "`reward_clip_range` is [{low}, {high}] (use two finite numbers, the lower one first)"
                )))
            }
            _ => Ok(()),
        }
    }

    fn inputs(&self) -> Inputs {
        reference_inputs(self.beta)
    }
}
