//! Stage 3: advantages and log-probabilities to a loss per token and its derivative.

use anyhow::Result;
use capo_plugin::{ObjectiveFn, Sink};

use crate::stages::batch::{StepBatch, StepInfo, TokenLoss};

/// Fills `batch.token_loss`.
///
/// # Errors
///
/// The objective's own sentence, or the rule that it broke.
pub fn evaluate(
    objective: &mut ObjectiveFn,
    sink: &mut dyn Sink,
    batch: &mut StepBatch,
    info: &StepInfo,
) -> Result<()> {
    let n = batch.dims.len();
    let mut out = TokenLoss { loss: vec![0.0; n], dloss_dlogp: vec![0.0; n] };
    objective.evaluate(sink, &batch.view(info), &mut out.loss, &mut out.dloss_dlogp)?;
    batch.token_loss = Some(out);
    Ok(())
}
