//! Stage 6: the optimizer step.

use anyhow::Result;

use crate::model::{Gradients, Policy};
use crate::optim::{AdamW, StepOutcome};

/// Clips and applies the gradient; a gradient that is not finite changes nothing and is reported by `taken`.
///
/// # Errors
///
/// When the device fails.
pub fn apply(
    optimizer: &mut AdamW,
    policy: &Policy,
    gradients: &Gradients,
    learning_rate: f64,
    max_grad_norm: f64,
) -> Result<StepOutcome> {
    optimizer.step(policy.params(), gradients, learning_rate, max_grad_norm)
}
