//! The loop: rollout → advantage → objective → mask and weight → backward → step and step control, for every algorithm.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use capo_loader::batch_file;
use capo_loader::{mask, weight};
use capo_plugin::Point;

use crate::eval;
use crate::metrics::Timer;
use crate::metrics::sink::StepSink;
use crate::model::{Capture, Dropout, Policy, TokenOutputs};
use crate::report::{Logged, Report, log_completions};
use crate::run::{Resources, Run, best, checkpoint, recovery_point};
use crate::stages::backward::StepGradients;
use crate::stages::batch::SampledBatch;
use crate::stages::rollout::{self, Sampler};
use crate::stages::{advantage, backward, control, effect, logps, objective};

/// Trains until the last step. Earlier it ends at the end of a rollout, if `stop` is set or `stop_after` steps are done.
pub fn train(run: &mut Run, report: &mut Report, stop_after: Option<u64>, stop: &AtomicBool) -> Result<()> {
    run.watchdog.place().at(run.progress.step);
    let outcome = rollouts(run, report, stop_after, stop);
    if outcome.is_err() {
        // The run's own error is returned, not an error of this save. Without this checkpoint, a resume continues from the previous one.
        let _ = checkpoint::save_last(run);
    }
    outcome
}

fn rollouts(run: &mut Run, report: &mut Report, stop_after: Option<u64>, stop: &AtomicBool) -> Result<()> {
    let (max_steps, max_time) = (run.config.train.max_steps, run.config.train.max_time);
    let started = Instant::now();
    let mut saved = started;
    if run.progress.step == 0 {
        eval::record_before(run)?;
        best::check(run)?;
        report.started(run)?;
    }
    while run.progress.step < max_steps && best::ending(run).is_none() {
        let begun = Instant::now();
        recovery_point::remember(run);
        let mut rollout = sample(run)?;
        let mut outputs = rollout.outputs.take();
        let mut untold = false;
        for iteration in 0..run.config.train.num_iterations as u64 {
            for (batch, part) in rollout.parts(run.config.sizes.step).zip(0..) {
                if run.progress.step < max_steps {
                    if untold {
                        report.step(run)?;
                    }
                    let is_logged = iteration == 0 && run.completions.is_due(batch.sampled_at);
                    let logged = is_logged.then_some(Logged { rollout: &rollout, part });
                    optimize(run, (batch, outputs.take()), iteration, logged)?;
                    untold = true;
                }
            }
        }
        let out_of_time = max_time > 0.0 && started.elapsed().as_secs_f64() >= max_time;
        let stopped =
            stop.load(Ordering::Relaxed) || stop_after.is_some_and(|limit| run.progress.step >= limit) || out_of_time;
        let lasts = stopped || checkpoint::is_due(run) || best::ending(run).is_some();
        // The next rollout is taken to last as long as this one: after it, more than the promised time would be at risk.
        let by_time = !lasts && checkpoint::is_due_by_time(run, saved.elapsed() + begun.elapsed());
        // The checkpoint precedes the report of the step, which includes the time for writing it.
        let written = if lasts || by_time {
            let _timer = run.metrics.timer("checkpoint");
            checkpoint::write(run, by_time)
        } else {
            Ok(None)
        };
        report.step(run)?;
        let kept = match written {
            Ok(Some(written)) => checkpoint::appear(run, &written),
            written => written.map(drop),
        };
        match kept {
            Err(error) if by_time => report.warn(&format!("no checkpoint after step {}: {error:#}", run.progress.step)),
            kept => kept?,
        }
        if lasts || by_time {
            saved = Instant::now();
        }
        if stopped {
            break;
        }
    }
    Ok(())
}

/// Stage 1, and the log-probabilities under the sampling policy.
fn sample(run: &mut Run) -> Result<rollout::SampledRollout> {
    let work = run.work();
    let measured = effect::is_due(run.progress.step, run.config.train.measure_step);
    let needs = control::needs(run.needs, &run.components.step_controls, measured);
    let capture = Capture { wants: needs.wants(), loss_temperature: work.loss_temperature };
    let Run { resources, progress, metrics, warned, .. } = run;
    let Resources { config, policy, dataset, tokenizer, rewards, needs, watchdog, .. } = resources;
    let timer = metrics.timer("rollout");
    let completions = vec![1; config.sizes.rollout];
    let mut sink = StepSink::new(metrics, &completions, Point::Reward, warned, watchdog);
    let sampler = Sampler {
        config,
        step: progress.step,
        context: needs.context(),
        capture: config.train.score_at_sampling.then_some(capture),
        sampler_logps: config.sampler_differs() || policy.drops_out(),
        top_k: needs.sampler_top_k(),
        tokenizer,
        rewards,
        sink: &mut sink,
    };
    let drawn_by = policy.share().with_dtype(config.sampler_dtype().into());
    let mut rollout = rollout::sample(&drawn_by, dataset, progress.prompts, sampler)?;
    progress.prompts += rollout.prompts;
    if config.sizes.steps_per_rollout > 1 {
        // As in TRL, the training policy computes the log-probabilities of its completions.
        let dropout = Dropout::of_rollout(config.train.seed, progress.step);
        let policy = policy.in_training(dropout).with_truncation(config.loss_truncation());
        rollout.batch.old_logps = Some(logps::detached(&policy, &rollout.batch, work)?);
    }
    drop(timer);
    crate::report::record_rollout(run, &rollout);
    if let Some(filtered) = &rollout.filtered {
        filtered.record(&mut run.metrics);
    }
    run.metrics.hold();
    Ok(rollout)
}

/// Stages 2 to 6 for the batch of one optimizer step.
fn optimize(
    run: &mut Run,
    (batch, outputs): (SampledBatch, Option<TokenOutputs>),
    iteration: u64,
    logged: Option<Logged<'_>>,
) -> Result<()> {
    let (info, work) = (run.step_info(iteration), run.work());
    let log_tokens = logged.is_some() && run.config.logging.log_tokens;
    let measured = effect::is_due(info.step, run.config.train.measure_step);
    let (entropy_coef, truncation) = (run.config.train.entropy_coef, run.config.loss_truncation());
    let Run { resources, metrics, warned, dump, recovery, .. } = run;
    let Resources { config, policy, reference, components, needs, optimizer, watchdog, .. } = resources;
    let loss_factors = &config.train.loss_factors;
    let policy = &policy.in_training(Dropout::of_step(info.seed, info.step)).with_truncation(truncation);
    let completion_mask = batch.completion_mask.clone();
    let mut sink = StepSink::new(metrics, &completion_mask, Point::Advantage, warned, watchdog);
    sink.arrays = log_tokens.then(Vec::new);

    let timer = sink.metrics.timer("score");
    let needs = control::needs(*needs, &components.step_controls, measured);
    let (batch, forwards) = logps::of_batch(policy, reference.as_ref(), optimizer, (batch, outputs), &needs, work)?;
    end(timer, policy)?;

    let timer = sink.metrics.timer("advantage");
    let advantages = advantage::estimate(&mut components.advantage, &mut sink, &batch, &info)?;
    drop(timer);

    sink.point = Point::Objective;
    let timer = sink.metrics.timer("objective");
    let batch = objective::evaluate(&mut components.objective, &mut sink, batch, advantages, &info)?;
    drop(timer);

    if let Some(dir) = dump {
        batch_file::write(
            &dir.join(batch_file::name(info.step)),
            &batch.to_host()?.view(&info),
            batch.context.as_ref().map(|context| (context, info.step - batch.sampled_at)),
        )?;
    }

    sink.point = Point::Mask;
    let timer = sink.metrics.timer("mask");
    let mut accepted = mask::apply(&mut components.masks, &mut sink, &batch.view(&info))?;
    sink.point = Point::Weight;
    let weighed = weight::apply(&mut components.weights, &mut sink, &batch.view(&info), &mut accepted)?;
    let mut factored = None;
    if !loss_factors.is_empty() {
        // The objective's metrics of this batch are already recorded, so this call records none.
        let decided = (&accepted, &weighed);
        factored =
            objective::factor(&mut components.objective, &mut sink.warnings, &batch, &info, loss_factors, decided)?;
    }
    drop(timer);

    let timer = sink.metrics.timer("backward");
    let mut reduced = backward::reduce(&batch, &info, &accepted, &weighed, factored.as_ref())?;
    if entropy_coef > 0.0 {
        sink.metrics.record("policy_loss", reduced.loss);
        reduced.add_entropy_bonus(&batch, &accepted, entropy_coef);
    }
    let gradients = match accepted.tokens {
        0 => None,
        _ => Some(backward::accumulate(policy, forwards, &batch, &reduced, work)?),
    };
    if let Some(StepGradients { rejected: Some(_), second_pass, .. }) = &gradients {
        sink.metrics.record("timing_s/second_moment", second_pass.as_secs_f64());
    }
    end(timer, policy)?;

    // The weights are about to change, which invalidates the recovery point.
    *recovery = None;
    let timer = sink.metrics.timer("step");
    let gradient = gradients.as_ref().map(|gradients| &gradients.accepted);
    let before = control::remember(policy, optimizer, gradient, &components.step_controls, measured)?;
    let (rate, limit) = (info.optimizer.learning_rate, info.optimizer.max_grad_norm);
    let outcome = match gradients {
        Some(StepGradients { accepted, rejected, .. }) => {
            Some(optimizer.step(policy.params(), &accepted, rejected.as_ref(), rate, limit)?)
        }
        None => None,
    };
    end(timer, policy)?;

    let token_weights = &weighed.token_weights;
    let step = control::Taken { policy, optimizer, batch: &batch, info: &info, token_weights, work, measured };
    let outcome = control::apply(&mut components.step_controls, &mut sink, before, outcome, step)?;

    let taken = outcome.is_some_and(|outcome| outcome.taken);
    let timer = sink.metrics.timer("mask");
    sink.point = Point::Mask;
    mask::step_end(&mut components.masks, &mut sink, &batch.view(&info), &accepted.mask, taken)?;
    sink.point = Point::Weight;
    weight::step_end(&mut components.weights, &mut sink, &batch.view(&info), &weighed, taken)?;
    drop(timer);

    let arrays = sink.arrays.take().unwrap_or_default();
    crate::report::record_step(run, &batch, (&accepted, &weighed), &reduced, outcome);
    if let Some(logged) = logged {
        log_completions(run, &batch, &logged, (&accepted, &weighed), &arrays)?;
    }
    run.progress.step += 1;
    run.watchdog.place().at(run.progress.step);
    if eval::is_due(run) {
        eval::record(run)?;
        best::consider(run)?;
    }
    Ok(())
}

/// Ends the timer of a stage after the device has finished its work, which would otherwise count in the next stage.
fn end(timer: Timer, policy: &Policy) -> Result<()> {
    policy.device().synchronize()?;
    drop(timer);
    Ok(())
}
