//! Stage 4, the phase `decide`: masks and weights decide which tokens reach the backward pass, and
//! with which weight.

use anyhow::Result;
use capo_loader::decision::Decision;
use capo_loader::registry::Components;
use capo_plugin::Point;

use super::batch::{Factored, StepBatch, StepInfo};
use super::objective;
use super::recorder::Recorder;

/// The decision of all masks and weights. If `loss_factors` names some of them, they become factors
/// of the loss, which is returned too.
pub fn decide(
    components: &mut Components,
    recorder: &mut Recorder<'_>,
    batch: &StepBatch,
    info: &StepInfo,
    loss_factors: &[String],
) -> Result<(Decision, Option<Factored>)> {
    let view = batch.view(info);
    let decision = components
        .deciders
        .decide(&mut recorder.at(Point::Mask), &view)?;
    if loss_factors.is_empty() {
        return Ok((decision, None));
    }
    let factored = objective::factor(
        &mut components.objective,
        &mut recorder.silent_at(Point::Objective),
        batch,
        info,
        loss_factors,
        &decision,
    )?;
    Ok((decision, factored))
}
