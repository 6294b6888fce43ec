//! Stage 4: masks and weights decide which tokens reach the backward pass, and with which weight.

use anyhow::Result;
use capo_loader::decision::Decision;
use capo_loader::mask;
use capo_loader::registry::Components;
use capo_loader::weight;
use capo_plugin::Point;

use super::batch::{Factored, StepBatch, StepInfo};
use super::objective;
use super::recorder::Recorder;

/// The decision of all masks and weights, and the loss with those of them inside that
/// `loss_factors` names.
pub fn decide(
    components: &mut Components,
    recorder: &mut Recorder<'_>,
    batch: &StepBatch,
    info: &StepInfo,
    loss_factors: &[String],
) -> Result<(Decision, Option<Factored>)> {
    let view = batch.view(info);
    let mut decision = mask::apply(&mut components.masks, &mut recorder.at(Point::Mask), &view)?;
    weight::apply(
        &mut components.weights,
        &mut recorder.at(Point::Weight),
        &view,
        &mut decision,
    )?;
    if loss_factors.is_empty() {
        return Ok((decision, None));
    }
    let mut silent = recorder.silent_at(Point::Objective);
    let factored = objective::factor(
        &mut components.objective,
        &mut silent,
        batch,
        info,
        loss_factors,
        &decision,
    )?;
    drop(silent);
    Ok((decision, factored))
}

/// Tells all masks and weights how the step ended.
pub fn step_end(
    components: &mut Components,
    recorder: &mut Recorder<'_>,
    batch: &StepBatch,
    info: &StepInfo,
    decision: &Decision,
    taken: bool,
) -> Result<()> {
    let view = batch.view(info);
    let mut sink = recorder.at(Point::Mask);
    for mask in &mut components.masks {
        mask.step_end(&mut sink, &view, &decision.token_mask, taken)?;
    }
    drop(sink);
    let mut sink = recorder.at(Point::Weight);
    for weight in &mut components.weights {
        weight.step_end(&mut sink, &view, &decision.token_weights, taken)?;
    }
    Ok(())
}
