//! The optimizer that the proposed step models, and the moments from which it starts.

use capo_core::{HostMoments, OptimizerModel, SecondMoment};
use capo_plugin::OptimizerKind;
use capo_plugin::prelude::*;

use crate::device;

/// Model of the optimizer for the proposed step; by default the trainer's own.
#[derive(Default)]
pub(crate) struct Optimizer {
    pub choice: OptimizerChoice,
    /// Adam's constants; an absent one is the trainer's.
    pub beta1: Option<f64>,
    pub beta2: Option<f64>,
    pub eps: Option<f64>,
    pub moments: Moments,
}

/// Update rule of the model.
#[derive(Choice, Default, Clone, Copy)]
pub(crate) enum OptimizerChoice {
    /// The trainer's own rule, with its weight decay and its treatment of rejected gradients.
    #[default]
    Host,
    /// Plain gradient descent.
    Sgd,
    /// Adam without weight decay.
    Adam,
    /// Adam with the trainer's weight decay.
    #[choice("adamw")]
    AdamW,
}

/// Adam's moments from which a proposed step starts: the model's own, of the vocabulary rows that
/// it has seen, or the trainer's, `host`.
#[derive(Choice, Default, Clone, Copy, PartialEq)]
pub(crate) enum Moments {
    /// The mask's own moments, of the vocabulary rows that it has seen.
    #[default]
    Own,
    /// The trainer's moments of the last layer.
    Host,
}

impl Optimizer {
    /// The optimizer as a model of the core.
    pub fn model(&self, batch: &Batch<'_>) -> Result<OptimizerModel, PluginError> {
        let host = batch.optimizer;
        let chosen = match self.choice {
            OptimizerChoice::Host => host.kind,
            OptimizerChoice::Sgd => OptimizerKind::SGD,
            OptimizerChoice::Adam => OptimizerKind::ADAM,
            OptimizerChoice::AdamW => OptimizerKind::ADAMW,
        };
        let adam = capo_core::OptimizerKind::Adam;
        let kept = SecondMoment::Kept;
        let (kind, second_moment, weight_decay) = match chosen {
            OptimizerKind::SGD => (capo_core::OptimizerKind::Sgd, kept, 0.0),
            OptimizerKind::ADAM => (adam, kept, 0.0),
            OptimizerKind::ADAMW => (adam, kept, host.weight_decay),
            OptimizerKind::ADAMW_KEPT_AND_REJECTED => {
                (adam, SecondMoment::KeptAndRejected, host.weight_decay)
            }
            OptimizerKind(other) => {
                return Err(PluginError::unsupported(format!(
                    "the trainer's optimizer is of kind {other}, which this mask does not model \
                     (set `optimizer = \"adam\"` or `\"sgd\"`)"
                )));
            }
        };
        let beta1 = self.beta1.unwrap_or(host.beta1);
        let beta2 = self.beta2.unwrap_or(host.beta2);
        let eps = self.eps.unwrap_or(host.eps);
        Ok(OptimizerModel {
            kind,
            beta1,
            beta2,
            eps,
            second_moment,
            weight_decay,
        })
    }

    /// The trainer's moments, or `None` where the model uses its own.
    pub fn moments<'a>(&self, batch: &Batch<'a>) -> Result<Option<HostMoments<'a>>, PluginError> {
        if self.moments == Moments::Own {
            return Ok(None);
        }
        Ok(Some(HostMoments {
            arrays: device::moments(batch)?,
            steps: batch.optimizer.steps_taken,
        }))
    }
}
