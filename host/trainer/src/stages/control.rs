//! Stage 6, the phase `step`: between the gradient and the new weights, step controls decide how
//! much of the optimizer's step is applied.

use anyhow::Result;
use candle_core::DType;
use capo_plugin::{Inputs, ParameterGroup, Point, ProposedStep, StepControlHandle};
use host_model::optim::{Optimizer, StepOutcome};
use host_model::{Gradients, Params, Policy, groups};

use super::batch::{StepBatch, StepInfo};
use super::effect::{self, Effect};
use super::logps::Work;
use super::measure::{self, Proposal};
use super::recorder::Recorder;
use crate::Error;

/// State before a step, from which the step can be undone. It exists only if a control or a
/// measurement examines the step.
pub struct Before {
    weights: Params,
    /// Agreement of the gradient with the previous step; `None` unless a control asks and there is
    /// a previous step.
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

/// The part of a step that was applied.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    /// Norms of the gradient; `None` if every token was rejected.
    pub outcome: Option<StepOutcome>,
    /// True if the weights changed.
    pub taken: bool,
    /// Share of the step's length that each control left, by its name in reports.
    pub shares: Vec<(String, f64)>,
    /// The measured effect of the step; `None` unless it was taken and is measured.
    pub effect: Option<Effect>,
}

impl Applied {
    /// Share of the step's length that all controls together left.
    pub fn share(&self) -> f64 {
        self.shares.iter().map(|(_, share)| share).product()
    }
}

/// True if one of `controls` may restore the moments.
pub fn restores_moments(controls: &[StepControlHandle]) -> bool {
    controls.iter().any(StepControlHandle::restores_moments)
}

/// Copies the state that the step will change, if a control may shorten the step or it is
/// `measured`.
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
    let asked = controls
        .iter()
        .any(|control| control.inputs().contains(Inputs::ALIGNMENT));
    let alignment = match gradients.filter(|_| asked) {
        Some(gradients) => optimizer.alignment(gradients)?,
        None => None,
    };
    let optimizer = restores_moments(controls)
        .then(|| optimizer.deep_copy())
        .transpose()?;
    Ok(Some(Before {
        weights: policy.params().deep_copy(DType::F32)?,
        alignment,
        optimizer,
    }))
}

/// Each control in order sees the step as the earlier controls left it, and shortens it. The
/// remaining step is then measured.
///
/// If nothing of the step remains and a control restores the moments, no step was taken.
pub fn apply(
    controls: &mut [StepControlHandle],
    recorder: &mut Recorder<'_>,
    before: Option<Before>,
    outcome: Option<StepOutcome>,
    step: Taken<'_>,
) -> Result<Applied> {
    let taken = outcome.is_some_and(|outcome| outcome.taken);
    let mut done = Applied {
        outcome,
        taken,
        ..Applied::default()
    };
    let Some(before) = before.filter(|_| taken) else {
        return Ok(done);
    };
    let mut sink = recorder.at(Point::StepControl);
    let Taken {
        policy,
        optimizer,
        batch,
        info,
        token_weights,
        work,
        measured,
    } = step;
    let groups = groups(policy.params());
    let proposed = measure::Step {
        policy,
        before: &before.weights,
        optimizer,
        groups: &groups,
        batch: &batch.scored,
    };
    let mut proposal = Proposal::new(proposed, info, work);
    proposal.alignment = before.alignment;
    proposal.gradient_norm = outcome.map(|outcome| outcome.grad_norm);
    let shown: Vec<ParameterGroup<'_>> = (groups.iter())
        .map(|group| ParameterGroup::new(&group.name, group.parameters))
        .collect();
    let mut seen = *info;
    for control in controls {
        // A control sees a step that earlier controls shortened as one with a lower rate.
        seen.optimizer.learning_rate = info.optimizer.learning_rate * done.share();
        let proposed = ProposedStep {
            weights: token_weights,
            groups: &shown,
            measurements: &mut proposal,
        };
        let scales = control.control(&mut sink, &batch.view(&seen), proposed)?;
        let share = proposal.scale(&scales)?;
        done.shares.push((control.id().to_owned(), share));
    }
    if measured {
        done.effect = Some(effect::measure(&mut proposal, batch, token_weights)?);
    }
    if let Some(moments) = before.optimizer.filter(|_| done.share() == 0.0) {
        *optimizer = moments;
        done.taken = false;
    }
    policy.device().synchronize()?;
    Ok(done)
}

/// Refuses weights and moments that are not finite. No checkpoint may hold them, because no run
/// could go on from it.
pub fn check_finite(policy: &Policy, optimizer: &Optimizer, info: &StepInfo) -> Result<()> {
    let step = info.step + 1;
    let go_on = "in the run's `config.toml`, and resume with `--allow-changed-config`";
    if let Some(name) = policy.params().not_finite()? {
        let decay = if info.optimizer.weight_decay > 0.0 {
            " or `train.weight_decay`"
        } else {
            ""
        };
        let message = format!(
            "step {step} makes numbers of `{name}` infinite or NaN (lower \
             `train.learning_rate`{decay} {go_on})"
        );
        return Err(Error::diverged(message).into());
    }
    if let Some(name) = optimizer.not_finite()? {
        let message = format!(
            "the gradients of step {step} are too large for the optimizer's `{name}` (set \
             `train.max_grad_norm` to 1 {go_on})"
        );
        return Err(Error::diverged(message).into());
    }
    Ok(())
}
