//! Stage 2, in the phase `judge`: computes advantages from rewards.

use anyhow::Result;
use capo_plugin::{AdvantageHandle, Sink};

use crate::stages::batch::{BatchWithLogps, StepInfo};

/// Computes the advantages, `[B, T]`, reward units.
pub fn estimate(
    estimator: &mut AdvantageHandle,
    sink: &mut dyn Sink,
    batch: &BatchWithLogps,
    info: &StepInfo,
) -> Result<Vec<f32>> {
    // While the estimator runs, the batch's advantages are zeros.
    let zeros = vec![0.0; batch.sampled.dims().len()];
    let mut advantages = zeros.clone();
    estimator.estimate(sink, &batch.view(info, &zeros), &mut advantages)?;
    Ok(advantages)
}
