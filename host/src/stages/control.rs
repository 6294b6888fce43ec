//! Stage 6, between gradient and new weights: how much of the optimizer's step is taken.

use anyhow::Result;
use candle_core::DType;
use capo_plugin::abi_alignment::Alignment;
use capo_plugin::{Inputs, ParameterGroup, Point, StepControlFn};

use super::batch::{StepBatch, StepInfo};
use super::effect;
use super::logps::{Needs, Work};
use super::measure::Proposal;
use crate::metrics::names::{APPLIED, metric_name};
use crate::metrics::sink::StepSink;
use crate::model::{Gradients, Params, Policy, groups};
use crate::optim::{Optimizer, StepOutcome};

/// State before a step, to which the step can be taken back: held only where somebody looks at the step.
pub struct Before {
    weights: Params,
    /// How the gradient agrees with the step before, where a control asks.
    alignment: Option<Alignment>,
    /// Where a control gives the moments back.
    optimizer: Option<Optimizer>,
}

/// The step that was taken, with what it followed from.
pub struct Taken<'a> {
    /// With the new weights.
    pub policy: &'a Policy,
    /// With the new moments.
    pub optimizer: &'a mut Optimizer,
    /// The batch behind the gradient.
    pub batch: &'a StepBatch,
    /// Its step's settings.
    pub info: &'a StepInfo,
    /// `[B, T]`: what each token weighed in the gradient.
    pub token_weights: &'a [f32],
    /// How forward passes are split.
    pub work: Work,
    /// True if `train.measure_step` asks for the numbers of this step.
    pub measured: bool,
}

/// Needs of the log-probability pass: those of the components, and those of step controls and measurements.
pub fn needs(needs: Needs, controls: &[StepControlFn], measured: bool) -> Needs {
    let needs = needs.with_hidden(measured || !controls.is_empty());
    if measured { needs.with(Inputs::LAST_LAYER) } else { needs }
}

/// True where one of them gives the moments back.
pub fn restores_moments(controls: &[StepControlFn]) -> bool {
    controls.iter().any(StepControlFn::restores_moments)
}

/// Copies what the step will change, where a control may shorten it or it is `measured`.
pub fn remember(
    policy: &Policy,
    optimizer: &Optimizer,
    gradients: Option<&Gradients>,
    controls: &[StepControlFn],
    measured: bool,
) -> Result<Option<Before>> {
    if controls.is_empty() && !measured {
        return Ok(None);
    }
    let asked = controls.iter().any(|control| control.inputs().contains(Inputs::ALIGNMENT));
    let alignment = match gradients.filter(|_| asked) {
        Some(gradients) => Some(Alignment { cosine: optimizer.alignment(gradients)?.unwrap_or(f64::NAN) }),
        None => None,
    };
    let optimizer = restores_moments(controls).then(|| optimizer.deep_copy()).transpose()?;
    Ok(Some(Before { weights: policy.params().deep_copy(DType::F32)?, alignment, optimizer }))
}

/// Lets each control in order see the step as those before it left it, and shortens it as each says; then measures what is left.
///
/// The outcome says that no step was taken where nothing of it is left and a control gives the moments back.
pub fn apply(
    controls: &mut [StepControlFn],
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
    let shown: Vec<ParameterGroup<'_>> =
        (groups.iter()).map(|group| ParameterGroup { name: &group.name, parameters: group.parameters }).collect();
    sink.point = Point::StepControl;
    sink.alignment = before.alignment;
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
