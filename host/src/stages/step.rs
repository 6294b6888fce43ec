//! Stage 6: the optimizer step.

use anyhow::Result;

use crate::model::Policy;
use crate::optim::{Optimizer, StepOutcome};
use crate::stages::backward::StepGradients;

/// Clips and applies the gradients. A gradient that is not finite changes nothing; `taken` is then false.
pub fn apply(
    optimizer: &mut Optimizer,
    policy: &Policy,
    gradients: &StepGradients,
    learning_rate: f64,
    max_grad_norm: f64,
) -> Result<StepOutcome> {
    let StepGradients { accepted, rejected, .. } = gradients;
    optimizer.step(policy.params(), accepted, rejected.as_ref(), learning_rate, max_grad_norm)
}
