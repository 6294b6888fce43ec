//! The step of the trainer's own optimizer, for components other than masks.

use capo_core::Step;
use capo_plugin::prelude::*;

use crate::optimizer::Optimizer;
use crate::predictor::{layer, loss, policy};

/// The step that the trainer's optimizer takes on `batch`, in the core's types; without a copy.
pub fn trainer_step<'a>(batch: &Batch<'a>) -> Result<Step<'a>, PluginError> {
    Ok(Step {
        batch: layer(batch, batch.last_layer()?)?,
        advantages: batch.advantages,
        policy: policy(batch),
        loss: loss(batch)?,
        optimizer: Optimizer::of_trainer().model(batch)?,
        learning_rate: batch.optimizer.learning_rate,
        moments: None,
    })
}
