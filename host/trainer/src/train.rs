//! The loop: rollout → advantage → objective → mask and weight → backward → step and step control,
//! for every algorithm.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use capo_loader::batch_file;
use capo_loader::registry::Components;
use capo_plugin::{Inputs, Point};
use capo_system::terminal;
use host_model::{Capture, Dropout};

use crate::eval;
use crate::metrics::Line;
use crate::run::{Progress, Resources, Run, best, checkpoint, recovery_point};
use crate::stages::backward::StepGradients;
use crate::stages::record::StepRecord;
use crate::stages::recorder::Recorder;
use crate::stages::rollout::{self, Part, SampledRollout, Sampler};
use crate::stages::{advantage, backward, control, decision, effect, logps, objective};

/// Follows a run while it trains, as the program's terminal does. `()` shows warnings alone.
pub trait Observer {
    /// Is told the line of a step, or that of the evaluation before training, whose step is 0.
    fn line(&mut self, _run: &Run, _line: &Line) {}

    fn warn(&mut self, warning: &str) {
        terminal::warn(warning);
    }
}

impl Observer for () {}

/// Trains until the last step. Earlier it ends at the end of a rollout, if `stop` is set or
/// `stop_after` steps are done. A signal to the whole job sets `stop` and may end programs of the
/// run as well, so that the rollout fails: then it ends at the rollout's beginning.
pub fn train(
    run: &mut Run,
    observer: &mut dyn Observer,
    stop_after: Option<u64>,
    stop: &AtomicBool,
) -> Result<()> {
    let started = Instant::now();
    let max_time = run.config().train.max_time;
    let stops = |step: u64| {
        let is_late = max_time > 0.0 && started.elapsed().as_secs_f64() >= max_time;
        is_late || stop.load(Ordering::Relaxed) || stop_after.is_some_and(|limit| step >= limit)
    };
    run.resources.watchdog.place().at(run.progress.step);
    let outcome = rollouts(run, observer, stops);
    let Err(error) = outcome else { return Ok(()) };
    // The run's own error is returned, not an error of this save. Without this checkpoint, a resume
    // continues from the previous one.
    let saved = checkpoint::save_last(run);
    let is_whole =
        saved.is_ok() && run.resources.saves && run.resources.watchdog.place().is_saved();
    if !(stop.load(Ordering::Relaxed) && is_whole) {
        return Err(error);
    }
    observer.warn(&format!(
        "the rollout is given up, and a resume samples it again: {error:#}"
    ));
    Ok(())
}

fn rollouts(run: &mut Run, observer: &mut dyn Observer, stops: impl Fn(u64) -> bool) -> Result<()> {
    let mut saved = Instant::now();
    if run.progress.step == 0 {
        evaluate_before(run, observer)?;
    }
    while !best::is_done(run) {
        let begun = Instant::now();
        recovery_point::remember(run);
        let mut rollout = sample(run)?;
        let (sizes, train, done) = (run.config().sizes, &run.config().train, run.progress.step);
        // Saves and evaluations are due at multiples of a rollout's steps. If a resume begins
        // between two, its first rollout is shorter.
        let uses = sizes.steps_per_rollout - done % sizes.steps_per_rollout;
        let left = uses.min(train.max_steps - done) as usize;
        let mut parts = rollout
            .parts(sizes.step, train.num_iterations as u64)
            .take(left)
            .peekable();
        while let Some(part) = parts.next() {
            step(run, &mut rollout, part, &stops)?;
            if parts.peek().is_some() {
                tell(run, observer)?;
            }
        }
        let stopped = stops(run.progress.step);
        // The next rollout is taken to last as long as this one: after it, more than the promised
        // time would be at risk.
        let due = checkpoint::due(run, stopped, saved.elapsed() + begun.elapsed());
        // The checkpoint precedes the line of the step, which includes the time for writing it, and
        // appears after it.
        let written = checkpoint::write(run, due);
        tell(run, observer)?;
        if let Some(warning) = checkpoint::finish(run, due, written)? {
            observer.warn(&warning);
        }
        if due.is_some() {
            saved = Instant::now();
        }
        // A line may say that a run which saves nothing has reached its end.
        if stopped || (!run.resources.saves && stops(run.progress.step)) {
            break;
        }
    }
    Ok(())
}

/// The evaluation before training. Without one there is no line of step 0.
fn evaluate_before(run: &mut Run, observer: &mut dyn Observer) -> Result<()> {
    eval::evaluate(run)?;
    best::check(run)?;
    run.progress.accuracy_before = run.progress.accuracy.take();
    run.progress.held_out_reward_before = run.progress.held_out_reward.take();
    let is_evaluated = run.observers.metrics.names().next().is_some();
    if is_evaluated {
        tell(run, observer)
    } else {
        Ok(())
    }
}

/// Ends a step for those who observe the run.
fn tell(run: &mut Run, observer: &mut dyn Observer) -> Result<()> {
    let Progress {
        step,
        num_tokens,
        completions,
        ..
    } = run.progress;
    let mut line = run.observers.metrics.line(step, num_tokens, completions);
    let warnings = run.observers.line(&mut line)?;
    warnings.iter().for_each(|warning| observer.warn(warning));
    observer.line(run, &line);
    Ok(())
}

/// One optimizer step, and the evaluation after it.
fn step(
    run: &mut Run,
    rollout: &mut SampledRollout,
    part: Part,
    stops: &impl Fn(u64) -> bool,
) -> Result<()> {
    let record = optimize(run, rollout, part)?;
    run.progress.step(&record);
    run.observers
        .metrics
        .step(&record, run.progress.rejected_share())?;
    run.observers
        .completions
        .step(&record, &rollout.record, &run.resources.tokenizer)?;
    run.resources.watchdog.place().at(run.progress.step);
    if eval::is_due(run) {
        evaluate_after(run, stops)?;
        best::consider(run)?;
    }
    Ok(())
}

/// The evaluation after a step. A signal that stops the whole job may have ended programs that
/// answer or grade: then they are started anew, so that the step is saved with its evaluation.
fn evaluate_after(run: &mut Run, stops: &impl Fn(u64) -> bool) -> Result<()> {
    let outcome = eval::evaluate(run);
    if outcome.is_err() && stops(run.progress.step) {
        eval::evaluate(run)
    } else {
        outcome
    }
}

/// Stage 1, and the log-probabilities under the sampling policy.
fn sample(run: &mut Run) -> Result<SampledRollout> {
    let started = Instant::now();
    let work = run.work();
    let Run {
        resources,
        progress,
        observers,
        warned,
        ..
    } = run;
    let Resources {
        config,
        policy,
        dataset,
        tokenizer,
        rewards,
        environment,
        inputs,
        components,
        watchdog,
        ..
    } = resources;
    let measured = effect::is_due(progress.step, config.train.measure_step);
    let capture = Capture {
        wants: inputs.outputs(&components.step_controls, measured),
        loss_temperature: work.loss_temperature,
    };
    let owners = &mut observers.metrics.owners;
    let mut recorder = Recorder::new(vec![1; config.sizes.rollout], owners, warned, watchdog);
    let sampler = Sampler {
        config,
        step: progress.step,
        inputs: *inputs,
        each_reward: components
            .advantage
            .inputs()
            .contains(Inputs::ROLLOUT_CONTEXT),
        capture: config.train.score_at_sampling.then_some(capture),
        tokenizer,
        rewards,
        environment: environment.as_mut(),
        recorder: &mut recorder,
    };
    let drawn_by = policy.share().with_dtype(config.sampler_dtype().into());
    let mut rollout = rollout::sample(&drawn_by, dataset, progress.prompts, sampler)?;
    if config.sizes.steps_per_rollout > 1 {
        // As in TRL, the training policy computes the log-probabilities of its completions.
        let dropout = Dropout::of_rollout(config.train.seed, progress.step);
        let policy = policy
            .in_training(dropout)
            .with_truncation(config.loss_truncation())
            .prepared()?;
        let old_logps = logps::detached(&policy, &rollout.batch, work)?;
        rollout.batch.arrays.old_logps = Some(old_logps.into());
    }
    rollout.record.recorded = recorder.recorded;
    rollout
        .record
        .recorded
        .times
        .insert("rollout", started.elapsed());
    progress.rollout(&rollout.record);
    observers.metrics.rollout(&rollout.record)?;
    Ok(rollout)
}

/// Stages 2 to 6 for the batch of one optimizer step.
fn optimize(
    run: &mut Run,
    rollout: &mut SampledRollout,
    Part { iteration, rows }: Part,
) -> Result<StepRecord> {
    let (info, work) = (run.step_info(iteration), run.work());
    let judged = run.judged(&info);
    let Run {
        resources,
        observers,
        warned,
        dump,
        recovery,
        ..
    } = run;
    let Resources {
        config,
        policy,
        reference,
        components,
        inputs,
        optimizer,
        watchdog,
        ..
    } = resources;
    let policy = &policy
        .in_training(Dropout::of_step(info.seed, info.step))
        .with_truncation(config.loss_truncation());
    let measured = effect::is_due(info.step, config.train.measure_step);
    let wants = inputs.outputs(&components.step_controls, measured);
    let batch = rollout.batch.part(rows.clone());
    let mut recorder = Recorder::new(
        batch.completion_mask().to_vec(),
        &mut observers.metrics.owners,
        warned,
        watchdog,
    );
    recorder.collects_arrays = observers
        .completions
        .takes_arrays(batch.sampled_at, iteration);

    let sampled = (batch, rollout.outputs.take());
    let (prepared, (batch, forwards)) = recorder.timed("score", policy, || {
        let prepared = policy.prepared()?;
        let scored = logps::of_batch(
            &prepared,
            reference.as_ref(),
            optimizer,
            sampled,
            (*inputs, &wants),
            work,
        )?;
        Ok((prepared, scored))
    })?;
    let Components {
        advantage,
        objective,
        ..
    } = components;
    let advantages =
        advantage::estimate(advantage, &mut recorder.at(Point::Advantage), &batch, &info)?;
    let batch = objective::evaluate(
        objective,
        &mut recorder.at(Point::Objective),
        batch,
        advantages,
        &info,
    )?;
    if let Some(dir) = dump {
        let path = dir.join(batch_file::name(info.step));
        let context = batch.sampled().arrays.context.as_ref();
        let age = info.step - batch.sampled().sampled_at;
        let context = context.map(|context| (&context.data, age));
        batch_file::write(&path, &batch.to_host()?.view(&judged), context)?;
    }
    let (decision, factored) = decision::decide(
        components,
        &mut recorder,
        &batch,
        &judged,
        &config.train.loss_factors,
    )?;

    let (reduced, gradients) = recorder.timed("backward", policy, || {
        let mut reduced = backward::reduce(&batch, &info, &decision, factored.as_ref())?;
        if config.train.entropy_coef > 0.0 {
            reduced.add_entropy_bonus(&batch, &info, &decision, config.train.entropy_coef);
        }
        let is_empty = decision.tokens() == 0;
        let gradients = (!is_empty)
            .then(|| backward::accumulate(&prepared, forwards, batch.sampled(), &reduced, work));
        Ok((reduced, gradients.transpose()?))
    })?;

    // The weights are about to change, which invalidates the recovery point and the copies.
    *recovery = None;
    drop(prepared);
    let (before, outcome) = recorder.timed("step", policy, || {
        let kept = gradients.as_ref().map(|gradients| &gradients.kept);
        let before =
            control::remember(policy, optimizer, kept, &components.step_controls, measured)?;
        let (rate, limit) = (info.optimizer.learning_rate, info.optimizer.max_grad_norm);
        let outcome = gradients
            .as_ref()
            .map(|StepGradients { kept, rejected, .. }| {
                optimizer.step(policy.params(), kept, rejected.as_ref(), rate, limit)
            });
        Ok((before, outcome.transpose()?))
    })?;
    let second_pass =
        gradients.and_then(|gradients| gradients.rejected.map(|_| gradients.second_pass));
    let token_weights = &decision.token_weights;
    let step = control::Taken {
        policy,
        optimizer,
        batch: &batch,
        info: &info,
        token_weights,
        work,
        measured,
    };
    let applied = control::apply(
        &mut components.step_controls,
        &mut recorder,
        before,
        outcome,
        step,
    )?;
    if applied.taken {
        control::check_finite(policy, optimizer, &info)?;
    }
    components.deciders.step_end(
        &mut recorder.at(Point::Mask),
        &batch.view(&judged),
        &decision,
        applied.taken,
    )?;

    let passes = policy.tokens_of_passes(&batch.sampled().sequences, work.micro_batch);
    let recorded = recorder.recorded;
    Ok(StepRecord {
        info,
        rows,
        batch,
        decision,
        reduced,
        second_pass,
        applied,
        passes,
        recorded,
    })
}
