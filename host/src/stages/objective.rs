//! Stage 3: advantages and log-probabilities to a loss per token and its derivative.

use anyhow::Result;
use capo_plugin::{ObjectiveFn, Reduction, Sink};

use crate::batch::{StepBatch, StepInfo};

/// A loss per token, not yet masked or reduced.
#[derive(Debug)]
pub struct TokenLoss {
    /// `[B, T]`.
    pub loss: Vec<f32>,
    /// `[B, T]`: derivative by the token's log-probability.
    pub dloss_dlogp: Vec<f32>,
    /// How the objective wants it reduced.
    pub reduction: Reduction,
}

/// Evaluates the objective on the whole batch.
///
/// # Errors
///
/// The objective's own sentence, or the rule that it broke.
pub fn evaluate(
    objective: &mut ObjectiveFn,
    sink: &mut dyn Sink,
    batch: &StepBatch,
    info: &StepInfo,
) -> Result<TokenLoss> {
    let n = batch.dims.len();
    let (mut loss, mut dloss_dlogp) = (vec![0.0; n], vec![0.0; n]);
    objective.evaluate(sink, &batch.view(info), &mut loss, &mut dloss_dlogp)?;
    Ok(TokenLoss { loss, dloss_dlogp, reduction: objective.reduction() })
}
