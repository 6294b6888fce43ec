//! Stage 2: rewards to advantages.

use anyhow::Result;
use capo_plugin::{Advantage, Sink};

use crate::stages::batch::{StepBatch, StepInfo};

/// Fills `batch.advantages`, `[B, T]`, reward units.
///
/// # Errors
///
/// The estimator's own sentence, or the rule that it broke.
pub fn fill(estimator: &mut Advantage, sink: &mut dyn Sink, batch: &mut StepBatch, info: &StepInfo) -> Result<()> {
    let mut advantages = std::mem::take(&mut batch.advantages);
    // While the estimator runs, the batch shows zeros.
    batch.advantages = vec![0.0; advantages.len()];
    estimator.estimate(sink, &batch.view(info), &mut advantages)?;
    batch.advantages = advantages;
    Ok(())
}
