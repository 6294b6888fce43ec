//! Stage 6, between the gradient and the new weights: decides how much of the optimizer's step is applied.

use anyhow::Result;
use candle_core::DType;
use capo_plugin::{Inputs, ParameterGroup, Point, StepControlHandle};

use super::batch::{StepBatch, StepInfo};
use super::effect;
use super::logps::{Needs, Work};
use super::measure::Proposal;
use crate::metrics::names::{APPLIED, metric_name};
use crate::metrics::sink::StepSink;
use crate::model::{Gradients, Params, Policy, groups};
use crate::optim::{Optimizer, StepOutcome};

/// State before a step, from which the step can be undone. It exists only if a control or a measurement examines the step.
pub struct Before {
    weights: Params,
    /// Agreement of the gradient with the previous step; `None` unless a control asks and there is a previous step.
    alignment: Option<f64>,
    /// The optimizer before the step; `None` unless a control may restore the moments.
    optimizer: Option<Optimizer>,
}

/// The step that was taken, with its inputs.
pub struct Taken<'a> {
    /// The policy with the new weights.
    pub policy: &'a Policy,
    /// The optimizer with the new moments.
    pub optimizer: &'a mut Optimizer,
    /// The batch behind the gradient.
    pub batch: &'a StepBatch,
    pub info: &'a StepInfo,
    /// `[B, T]`: weight of each token in the gradient.
    pub token_weights: &'a [f32],
    /// Split of the forward passes.
    pub work: Work,
    /// True if `train.measure_step` asks for measurements of this step.
    pub measured: bool,
}

/// Needs of the log-probability pass, for the components, the step controls and the measurements.
pub fn needs(needs: Needs, controls: &[StepControlHandle], measured: bool) -> Needs {
    let needs = needs.with_hidden(measured || !controls.is_empty());
    if measured { needs.with(Inputs::LAST_LAYER) } else { needs }
}

/// True if one of `controls` may restore the moments.
pub fn restores_moments(controls: &[StepControlHandle]) -> bool {
    controls.iter().any(StepControlHandle::restores_moments)
}

/// Copies the state that the step will change, if a control may shorten the step or it is `measured`.
pub fn remember(
    policy: &Policy,
    optimizer: &Optimizer,
    gradients: Option<&Gradients>,
    controls: &[StepControlHandle],
    measured: bool,
) -> Result<Option<Before>> {
    if controls.is_empty() && !measured {
        return Ok(None);
    }
    let asked = controls.iter().any(|control| control.inputs().contains(Inputs::ALIGNMENT));
    let alignment = match gradients.filter(|_| asked) {
        Some(gradients) => optimizer.alignment(gradients)?,
        None => None,
    };
    let optimizer = restores_moments(controls).then(|| optimizer.deep_copy()).transpose()?;
    Ok(Some(Before { weights: policy.params().deep_copy(DType::F32)?, alignment, optimizer }))
}

/// Each control in order sees the step as the earlier controls left it, and shortens it. The remaining step is then measured.
///
/// If nothing of the step remains and a control restores the moments, the outcome is that no step was taken.
pub fn apply(
    controls: &mut [StepControlHandle],
    sink: &mut StepSink<'_>,
    before: Option<Before>,
    outcome: Option<StepOutcome>,
    step: Taken<'_>,
) -> Result<Option<StepOutcome>> {
    let (Some(before), Some(outcome)) = (before, outcome.filter(|outcome| outcome.taken)) else {
        return Ok(outcome);
    };
    let Taken { policy, optimizer, batch, info, token_weights, work, measured } = step;
    let timer = sink.metrics.timer("step_control");
    let groups = groups(policy.params());
    let mut proposal =
        Proposal::new((policy, &before.weights), optimizer, &groups, batch, (info.seed, info.step), work);
    proposal.alignment = before.alignment;
    let shown: Vec<ParameterGroup<'_>> =
        (groups.iter()).map(|group| ParameterGroup::new(&group.name, group.parameters)).collect();
    sink.point = Point::StepControl;
    let mut left = 1.0;
    for control in &mut *controls {
        let mut scales = vec![1.0; groups.len()];
        control.control(sink, &batch.view(info), token_weights, &shown, &mut proposal, &mut scales)?;
        let applied = proposal.scale(&scales)?;
        sink.metrics.record(&metric_name(Point::StepControl, control.id(), APPLIED), applied);
        left *= applied;
    }
    if !controls.is_empty() {
        sink.metrics.record(&format!("step_control/{APPLIED}"), left);
    }
    if measured {
        effect::record(sink.metrics, &mut proposal, batch, token_weights)?;
    }
    let taken = match before.optimizer {
        Some(moments) if left == 0.0 => {
            *optimizer = moments;
            false
        }
        _ => true,
    };
    policy.device().synchronize()?;
    drop(timer);
    Ok(Some(StepOutcome { taken, ..outcome }))
}
