//! The training loop, for every algorithm.
//!
//! A rollout is sampled and rewarded, and then used in one or more optimizer steps. A step has five
//! phases: score → judge → decide → backward → step. The components act in them: advantage
//! estimator and objective in judge, masks and weights in decide, step controls in step.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use capo_loader::batch_file;
use capo_loader::decision::Decision;
use capo_loader::registry::Components;
use capo_plugin::{Inputs, Point};
use capo_system::terminal;
use host_model::frozen::Reference;
use host_model::optim::Optimizer;
use host_model::{Capture, Dropout, HEAD, Policy, TokenOutputs};

use crate::config::TrainConfig;
use crate::eval;
use crate::metrics::Line;
use crate::run::{Progress, Resources, Run, best, checkpoint, recovery_point};
use crate::stages::backward::{Reduced, StepGradients};
use crate::stages::batch::{BatchWithLogps, Factored, SampledBatch, StepBatch, StepInfo};
use crate::stages::control::Applied;
use crate::stages::logps::{ComponentInputs, Pass, Work};
use crate::stages::record::StepRecord;
use crate::stages::recorder::Recorder;
use crate::stages::rollout::{self, Part, SampledRollout, Sampler};
use crate::stages::{advantage, backward, control, decision, effect, logps, objective};

/// Follows a run while it trains, as the program's terminal does. `()` shows only warnings.
pub trait Observer {
    /// Called with the metrics of each step. The evaluation before training is step 0.
    fn line(&mut self, _run: &Run, _line: &Line) {}

    /// Called with each warning. By default it is printed to the terminal.
    fn warn(&mut self, warning: &str) {
        terminal::warn(warning);
    }
}

impl Observer for () {}

/// When training stops before its last step.
struct Stop<'a> {
    started: Instant,
    /// Most seconds of training; 0 is no limit.
    max_time: f64,
    /// Number of completed steps after which training stops.
    after: Option<u64>,
    /// Set by a signal.
    signal: &'a AtomicBool,
}

impl Stop<'_> {
    /// True if training stops once `step` steps are done.
    fn is_due(&self, step: u64) -> bool {
        let is_late = self.max_time > 0.0 && self.started.elapsed().as_secs_f64() >= self.max_time;
        is_late || self.is_signalled() || self.after.is_some_and(|limit| step >= limit)
    }

    fn is_signalled(&self) -> bool {
        self.signal.load(Ordering::Relaxed)
    }
}

/// Trains until the last step. Training ends earlier, after a rollout, if `stop` is set or
/// `stop_after` steps are done.
///
/// A signal to the whole job sets `stop` and may also end programs that the rollout needs. The
/// rollout then fails, and training ends at the beginning of that rollout.
pub fn train(
    run: &mut Run,
    observer: &mut dyn Observer,
    stop_after: Option<u64>,
    stop: &AtomicBool,
) -> Result<()> {
    let stop = Stop {
        started: Instant::now(),
        max_time: run.config().train.max_time,
        after: stop_after,
        signal: stop,
    };
    run.resources.watchdog.place().at(run.progress.step);
    let Err(error) = train_until(run, observer, &stop) else {
        return Ok(());
    };
    // The error of the run is returned, and not an error of this save. Without this checkpoint, a
    // resume continues from the previous one.
    let saved = checkpoint::save_last(run);
    let is_whole =
        saved.is_ok() && run.resources.saves && run.resources.watchdog.place().is_saved();
    if !(stop.is_signalled() && is_whole) {
        return Err(error);
    }
    observer.warn(&format!(
        "the rollout is given up, and a resume samples it again: {error:#}"
    ));
    Ok(())
}

fn train_until(run: &mut Run, observer: &mut dyn Observer, stop: &Stop<'_>) -> Result<()> {
    let mut saved = Instant::now();
    if run.progress.step == 0 {
        evaluate_before(run, observer)?;
    }
    while !best::is_done(run) {
        let begun = Instant::now();
        recovery_point::remember(run);
        let mut rollout = sample(run)?;
        take_steps(run, observer, &mut rollout, stop)?;
        let is_stopped = stop.is_due(run.progress.step);
        // The next rollout is assumed to last as long as this one. If no checkpoint is written now,
        // a kill during the next rollout costs this time as well.
        let due = checkpoint::due(run, is_stopped, saved.elapsed() + begun.elapsed());
        // The files are written before the step's line, so that the line includes the time for
        // them. The checkpoint appears in its place after the line.
        let written = checkpoint::write(run, due);
        tell(run, observer)?;
        if let Some(warning) = checkpoint::finish(run, due, written)? {
            observer.warn(&warning);
        }
        if due.is_some() {
            saved = Instant::now();
        }
        // An observer of a run that saves nothing may end the run when it sees a line.
        if is_stopped || (!run.resources.saves && stop.is_due(run.progress.step)) {
            break;
        }
    }
    Ok(())
}

/// The evaluation before training. Step 0 has a line of metrics only if something was evaluated.
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

/// Samples the next rollout. If several steps use it, it also gets the log-probabilities under the
/// policy that sampled it.
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
        // As in TRL, the policy that is trained computes the log-probabilities of its completions.
        let dropout = Dropout::of_rollout(config.train.seed, progress.step);
        let policy = policy
            .in_training(dropout)
            .with_truncation(config.loss_truncation())
            .prepared()?;
        let old_logps = logps::detached(&policy, &rollout.batch, work)?;
        rollout.batch.arrays.old_logps = Some(old_logps.into());
    }
    rollout.record.recorded = recorder.recorded;
    let times = &mut rollout.record.recorded.times;
    times.insert("rollout", started.elapsed());
    progress.rollout(&rollout.record);
    observers.metrics.rollout(&rollout.record)?;
    Ok(rollout)
}

/// Takes the optimizer steps of a rollout. The line of metrics of the last one is not yet written.
fn take_steps(
    run: &mut Run,
    observer: &mut dyn Observer,
    rollout: &mut SampledRollout,
    stop: &Stop<'_>,
) -> Result<()> {
    let sizes = run.config().sizes;
    let train = &run.config().train;
    let done = run.progress.step;
    // Checkpoints and evaluations are due at multiples of a rollout's steps. If a resume begins
    // between two of these, its first rollout is used in fewer steps.
    let uses = sizes.steps_per_rollout - done % sizes.steps_per_rollout;
    let left = uses.min(train.max_steps - done) as usize;
    let mut parts = rollout
        .parts(sizes.step, train.num_iterations as u64)
        .take(left)
        .peekable();
    while let Some(part) = parts.next() {
        let record = optimize(run, rollout, part)?;
        observe(run, rollout, &record)?;
        if eval::is_due(run) {
            evaluate_after(run, stop)?;
            best::consider(run)?;
        }
        if parts.peek().is_some() {
            tell(run, observer)?;
        }
    }
    Ok(())
}

/// Counts a step, and hands its record to those that write it down.
fn observe(run: &mut Run, rollout: &SampledRollout, record: &StepRecord) -> Result<()> {
    run.progress.step(record);
    let rejected = run.progress.rejected_share();
    let tokenizer = &run.resources.tokenizer;
    run.observers.metrics.step(record, rejected)?;
    run.observers
        .completions
        .step(record, &rollout.record, tokenizer)?;
    run.resources.watchdog.place().at(run.progress.step);
    Ok(())
}

/// The evaluation after a step. A signal to the whole job may have ended programs that answer or
/// grade. They are then started again, so that the step is saved with its evaluation.
fn evaluate_after(run: &mut Run, stop: &Stop<'_>) -> Result<()> {
    let outcome = eval::evaluate(run);
    if outcome.is_err() && stop.is_due(run.progress.step) {
        eval::evaluate(run)
    } else {
        outcome
    }
}

/// Writes the line of metrics of the current step, and hands it to the observer.
fn tell(run: &mut Run, observer: &mut dyn Observer) -> Result<()> {
    let Progress {
        step,
        num_tokens,
        completions,
        ..
    } = run.progress;
    let mut line = run.observers.metrics.line(step, num_tokens, completions);
    for warning in run.observers.line(&mut line)? {
        observer.warn(&warning);
    }
    observer.line(run, &line);
    Ok(())
}

/// Takes one optimizer step with a part of a rollout, and returns its record.
fn optimize(run: &mut Run, rollout: &mut SampledRollout, part: Part) -> Result<StepRecord> {
    let batch = rollout.batch.part(part.rows.clone());
    let info = run.step_info(part.iteration);
    let judged = run.judged(&info);
    let work = run.work();
    let Run {
        resources,
        observers,
        warned,
        dump,
        recovery,
        ..
    } = run;
    let config = &resources.config;
    let mut recorder = Recorder::new(
        batch.completion_mask().to_vec(),
        &mut observers.metrics.owners,
        warned,
        &resources.watchdog,
    );
    recorder.collects_arrays = observers
        .completions
        .takes_arrays(batch.sampled_at, info.iteration);
    let policy = resources
        .policy
        .in_training(Dropout::of_step(info.seed, info.step))
        .with_truncation(config.loss_truncation());
    let mut step = Step {
        info,
        judged,
        work,
        measured: effect::is_due(info.step, config.train.measure_step),
        train: &config.train,
        policy,
        reference: resources.reference.as_ref(),
        optimizer: &mut resources.optimizer,
        components: &mut resources.components,
        inputs: resources.inputs,
        recorder,
    };

    let (batch, pass) = step.score(batch, rollout.outputs.take())?;
    let batch = step.judge(batch)?;
    if let Some(dir) = dump {
        dump_batch(dir, &batch, &judged)?;
    }
    let (decision, factored) = step.decide(&batch)?;
    let reduced = step.reduce(&batch, &decision, factored.as_ref())?;
    let gradients = step.backward(pass, &batch, &decision, &reduced)?;
    let second_pass = gradients.as_ref().and_then(StepGradients::second_pass);
    // The weights are about to change, so the recovery point is no longer valid.
    *recovery = None;
    let applied = step.step(&batch, &decision, gradients)?;
    step.end(&batch, &decision, applied.taken)?;

    let sequences = &batch.sampled().sequences;
    let passes = step.policy.tokens_of_passes(sequences, work.micro_batch);
    Ok(StepRecord {
        info,
        rows: part.rows,
        decision,
        reduced,
        second_pass,
        applied,
        passes,
        recorded: step.recorder.recorded,
        batch,
    })
}

fn dump_batch(dir: &Path, batch: &StepBatch, judged: &StepInfo) -> Result<()> {
    let sampled = batch.sampled();
    let age = judged.step - sampled.sampled_at;
    let context = sampled.arrays.context.as_ref();
    let context = context.map(|context| (&context.data, age));
    let path = dir.join(batch_file::name(judged.step));
    batch_file::write(&path, &batch.to_host()?.view(judged), context)
}

/// One optimizer step: its settings, and what it uses of the run.
struct Step<'a> {
    /// The settings that the components see.
    info: StepInfo,
    /// The settings that masks and weights see: their learning rate is that at which the gradient
    /// will act.
    judged: StepInfo,
    /// Split of the passes into micro-batches.
    work: Work,
    /// True if the step's effect on the policy is measured.
    measured: bool,
    train: &'a TrainConfig,
    /// The policy with dropout and truncation, as it is trained.
    policy: Policy,
    reference: Option<&'a Reference>,
    optimizer: &'a mut Optimizer,
    components: &'a mut Components,
    /// Inputs for which the components ask.
    inputs: ComponentInputs,
    recorder: Recorder<'a>,
}

impl Step<'_> {
    /// Computes log-probabilities and all other inputs for which the components ask. `outputs` are
    /// those of the sampler's own passes, if it computed them: no forward pass is run for them
    /// here.
    fn score(
        &mut self,
        batch: SampledBatch,
        outputs: Option<TokenOutputs>,
    ) -> Result<(BatchWithLogps, Pass)> {
        let controls = &self.components.step_controls;
        let wants = self.inputs.outputs(controls, self.measured);
        let work = self.work;
        self.recorder.timed("score", &self.policy, || {
            let policy = self.policy.prepared()?;
            let (pass, outputs) = match outputs {
                Some(outputs) => (Pass::without_activations(policy, &batch, work), outputs),
                None => Pass::run(policy, &batch, &wants, work)?,
            };
            let mut batch = BatchWithLogps::new(batch, outputs)?;
            if let Some(reference) = self.reference {
                let ref_logps = logps::of_reference(reference, &batch.sampled, work)?;
                batch.sampled.arrays.ref_logps = Some(ref_logps.into());
            }
            if self.inputs.optimizer_state() {
                let weight = self.policy.params().get(HEAD)?.as_tensor();
                let (exp_avg, exp_avg_sq) = self.optimizer.moments(HEAD)?;
                batch.add_head_state([weight, exp_avg, exp_avg_sq])?;
            }
            Ok((batch, pass))
        })
    }

    /// Has the estimator compute the advantages, and the objective the loss of each token.
    fn judge(&mut self, batch: BatchWithLogps) -> Result<StepBatch> {
        let Components {
            advantage,
            objective,
            ..
        } = &mut *self.components;
        let mut sink = self.recorder.at(Point::Advantage);
        let advantages = advantage::estimate(advantage, &mut sink, &batch, &self.info)?;
        drop(sink);
        let mut sink = self.recorder.at(Point::Objective);
        objective::evaluate(objective, &mut sink, batch, advantages, &self.info)
    }

    /// Has masks and weights decide which tokens reach the gradient, and with which weight.
    fn decide(&mut self, batch: &StepBatch) -> Result<(Decision, Option<Factored>)> {
        decision::decide(
            self.components,
            &mut self.recorder,
            batch,
            &self.judged,
            &self.train.loss_factors,
        )
    }

    /// Reduces the loss to one number, with its derivatives.
    fn reduce(
        &mut self,
        batch: &StepBatch,
        decision: &Decision,
        factored: Option<&Factored>,
    ) -> Result<Reduced> {
        let coefficient = self.train.entropy_coef;
        self.recorder.timed("backward", &self.policy, || {
            let mut reduced = backward::reduce(batch, &self.info, decision, factored)?;
            if coefficient > 0.0 {
                reduced.add_entropy_bonus(batch, &self.info, decision, coefficient);
            }
            Ok(reduced)
        })
    }

    /// Computes the gradients; `None` if no token reaches them.
    fn backward(
        &mut self,
        pass: Pass,
        batch: &StepBatch,
        decision: &Decision,
        reduced: &Reduced,
    ) -> Result<Option<StepGradients>> {
        if decision.tokens() == 0 {
            return Ok(None);
        }
        let work = self.work;
        self.recorder.timed("backward", &self.policy, || {
            backward::accumulate(pass, batch.sampled(), reduced, work).map(Some)
        })
    }

    /// Has the optimizer change the weights, and step controls shorten this change.
    fn step(
        &mut self,
        batch: &StepBatch,
        decision: &Decision,
        gradients: Option<StepGradients>,
    ) -> Result<Applied> {
        let controls = &mut self.components.step_controls;
        let (before, outcome) = self.recorder.timed("step", &self.policy, || {
            let kept = gradients.as_ref().map(|gradients| &gradients.kept);
            let before =
                control::remember(&self.policy, self.optimizer, kept, controls, self.measured)?;
            let outcome = match &gradients {
                Some(gradients) => Some(self.optimizer.step(
                    self.policy.params(),
                    &gradients.kept,
                    gradients.rejected.as_ref(),
                    self.info.optimizer.learning_rate,
                    self.info.optimizer.max_grad_norm,
                )?),
                None => None,
            };
            Ok((before, outcome))
        })?;
        drop(gradients);
        let taken = control::Taken {
            policy: &self.policy,
            optimizer: self.optimizer,
            batch,
            info: &self.info,
            token_weights: &decision.token_weights,
            work: self.work,
            measured: self.measured,
        };
        let applied = control::apply(controls, &mut self.recorder, before, outcome, taken)?;
        if applied.taken {
            control::check_finite(&self.policy, self.optimizer, &self.info)?;
        }
        Ok(applied)
    }

    /// Tells masks and weights how the step ended.
    fn end(&mut self, batch: &StepBatch, decision: &Decision, taken: bool) -> Result<()> {
        let mut sink = self.recorder.at(Point::Mask);
        let view = batch.view(&self.judged);
        let deciders = &mut self.components.deciders;
        Ok(deciders.step_end(&mut sink, &view, decision, taken)?)
    }
}
