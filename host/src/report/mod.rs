//! Output for a person: a line every few steps, and a closing summary. Programs read the metrics instead.

mod completions;
pub mod found;
pub mod html;
mod live;
pub mod page;
pub mod terminal;
mod words;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use capo_loader::mask::Accepted;
use capo_loader::memory;
use capo_loader::weight::Weighed;
use capo_plugin::{Inputs, Point};

use crate::adamw::SecondMoment;
use crate::benchmark;
use crate::exam::Right;
use crate::metrics;
use crate::metrics::names::{
    BELOW_ONE, GRAD_NORM_UNMASKED, MEAN_WEIGHT, REJECTED, REJECTED_GRAD_NORM, REJECTED_GRADIENT, REJECTED_SO_FAR,
    REJECTION_RATE, SECOND_PASS_COMPLETIONS, WEIGHTED_AWAY, ZERO_ADVANTAGE, metric_name,
};
use crate::model::Adapter;
use crate::model::device::{self, Dtype};
use crate::optim::StepOutcome;
use crate::run::{Progress, Resources, Run, best, checkpoint};
use crate::stages::backward::Reduced;
use crate::stages::batch::StepBatch;
use crate::stages::logps::asked;
use terminal::{grouped, percent, say};

use crate::stages::rollout::SampledRollout;
use crate::warnings::Watch;
pub use completions::{Logged, log_completions};
pub use live::Answered;
use live::Live;

/// Progress on the terminal.
pub struct Report {
    started: Instant,
    first_step: Option<Duration>,
    last_step: Instant,
    steps: u64,
    /// Sum and number of the values of each of [`SHOWN`] since the last line.
    since: BTreeMap<&'static str, (f64, u32)>,
    live: Live,
}

/// Metrics of a step's line, as means over the steps since the last one: a single step's rewards are noise.
const SHOWN: [&str; 4] = ["reward", "entropy", "grad_norm", REJECTED];
/// Stages that are timed, but are not part of a step.
const OUTSIDE: [&str; 2] = [EVAL, "checkpoint"];
const EVAL: &str = "eval";
/// Number of steps after which a run says how long it takes.
const PACED: u64 = 3;
/// Least duration that is said, seconds.
const LONG: f64 = 60.0;

impl Report {
    /// A report of a process that started at `started`, for a run of `steps` steps of which `done` are done.
    pub fn new(started: Instant, steps: u64, done: u64) -> Self {
        let live = Live::new(steps, done);
        Self { started, first_step: None, last_step: Instant::now(), steps: 0, since: BTreeMap::new(), live }
    }

    /// Prints a separate line above the live one.
    pub fn say(&self, line: &str) {
        self.live.aside(|| say(line));
    }

    /// Prints a warning above the live line.
    pub fn warn(&self, warning: &str) {
        self.live.aside(|| terminal::warn(warning));
    }

    /// Prints the header of a run in `dir`; `sources` are lines about the origin of the settings.
    pub fn opening(&self, resources: &Resources, dir: &Path, sources: &[String]) {
        let Resources { config, policy, dataset, components, .. } = resources;
        let masks: Vec<&str> = components.masks.iter().map(capo_plugin::MaskHandle::id).collect();
        let masks = if masks.is_empty() { "none".to_owned() } else { masks.join(", ") };
        self.say(&format!(
            "model      {} ({} parameters{})\ndata       {}\nadvantage  {}\nobjective  {}\nmasks      {masks}",
            config.model.model_name_or_path,
            grouped(policy.weights().element_count() as u64),
            if policy.is_counted() { ", counted: it has no weights" } else { "" },
            dataset.describe(),
            components.advantage.id(),
            components.objective.id(),
        ));
        if let Some(reference) = &config.model.ref_model_name_or_path {
            self.say(&format!("reference  {reference}"));
        }
        if let Some(adapter) = policy.adapter() {
            self.adapter(resources, adapter);
        }
        let weights: Vec<&str> = components.weights.iter().map(capo_plugin::WeightHandle::id).collect();
        let controls: Vec<&str> = components.step_controls.iter().map(capo_plugin::StepControlHandle::id).collect();
        for (title, list) in [("weights", weights), ("step", controls)].iter().filter(|(_, list)| !list.is_empty()) {
            self.say(&format!("{title:<10} {}", list.join(", ")));
        }
        sources.iter().for_each(|line| self.say(line));
        if config.eval.num_prompts > 0 || !config.eval.benchmark.is_empty() {
            self.say(&format!("right      {}", Right::of(config)));
        }
        if config.train.device != device::CPU || config.train.dtype != Dtype::F32 {
            let dtype = candle_core::DType::from(config.train.dtype);
            let mut line = format!("device     {}, {}", config.train.device, dtype.as_str());
            if let Some(gpu) = device::memory::described(&config.train.device) {
                let products = if device::tf32::is_on(config.train.dtype == Dtype::Bf16) { "TF32" } else { "f32" };
                line += &format!(" ({gpu}; products of f32 in {products})");
            }
            self.say(&line);
        }
        if config.sampler_dtype() != config.train.dtype {
            let dtype = candle_core::DType::from(config.sampler_dtype());
            self.say(&format!("sampler    {}", dtype.as_str()));
        }
        if let Some(optimizer) = words::optimizer(&config.train) {
            self.say(&format!("optimizer  {optimizer}"));
        }
        self.say(&format!("saves      {}", words::saving(&config.train)));
        self.say(&format!(
            "run        {} ({} steps of {} completions, seed {})",
            dir.display(),
            config.train.max_steps,
            config.sizes.step,
            config.train.seed
        ));
    }

    /// Adds to the header where a run resumes, and with which changes.
    pub fn resuming(&self, run: &Run) {
        match run.progress.step {
            0 => self.say("resuming   at step 1 again: the run has no checkpoint"),
            step => self.say(&format!("resuming   after step {step}")),
        }
        if !run.changed.is_empty() {
            self.say(&format!("changed    {}", run.changed.join(", ")));
        }
    }

    /// Prints the adapter's size, and a line about components that predict steps of the last layer, which stays frozen.
    fn adapter(&self, resources: &Resources, adapter: &Adapter) {
        let (trained, frozen) = (adapter.params().element_count(), resources.policy.weights().element_count());
        let (trained, all) = (grouped(trained as u64), grouped((trained + frozen) as u64));
        self.say(&format!("lora       {}; trainable {trained} of {all}", words::adapter(adapter)));
        // Neither the advantage nor the objective predicts a step.
        let components = asked(&resources.components).skip(2).filter(|(_, inputs)| inputs.contains(Inputs::LAST_LAYER));
        let looking = components.map(|(id, _)| id).collect::<Vec<_>>().join(", ");
        if !looking.is_empty() {
            self.say(&format!("head       frozen; {looking} predicts the step that it would take if it were trained"));
        }
    }

    /// Prints the accuracy before training, and records it in the metrics as step 0.
    pub fn started(&self, run: &mut Run) -> Result<()> {
        if run.progress.held_out_reward_before.is_none() && run.benchmarks.is_empty() {
            return Ok(());
        }
        run.metrics.record("num_completions", run.completions_sampled() as f64);
        let flushed = run.metrics.flush(0)?;
        let Progress { accuracy_before, held_out_reward_before, .. } = run.progress;
        if let Some(held_out) = held_out(accuracy_before, held_out_reward_before) {
            self.say(&format!("held-out {held_out} before training"));
        }
        if let Some(measured) = benchmark::shown(&flushed.values) {
            self.say(&format!("benchmarks{measured}  before training"));
        }
        Ok(())
    }

    /// Ends a step: writes its metrics, and a line every `logging.logging_steps` steps.
    pub fn step(&mut self, run: &mut Run) -> Result<()> {
        let step = run.progress.step;
        run.metrics.record("num_completions", run.completions_sampled() as f64);
        run.metrics.record("step_time", self.last_step.elapsed().as_secs_f64());
        self.last_step = Instant::now();
        let flushed = run.metrics.flush(step)?;
        self.steps += 1;
        self.first_step.get_or_insert_with(|| self.started.elapsed());
        let value = |name: &str| flushed.values.get(name).copied();
        let is_masked = !run.components.masks.is_empty();
        for name in SHOWN.into_iter().filter(|name| is_masked || *name != REJECTED) {
            if let Some(value) = value(name) {
                let (sum, count) = self.since.entry(name).or_default();
                (*sum, *count) = (*sum + value, *count + 1);
            }
        }
        let means = self.since.iter().map(|(name, (sum, count))| (*name, sum / f64::from(*count)));
        let means: BTreeMap<&str, f64> = means.collect();
        self.live.step(step, &means, &flushed.values);
        flushed.warnings.iter().for_each(|warning| self.warn(warning));
        let every = run.config.logging.logging_steps;
        let last = step == run.config.train.max_steps;
        let measured = benchmark::shown(&flushed.values);
        if step == 1 || last || step.is_multiple_of(every) || value("eval_reward").is_some() || measured.is_some() {
            let number = |name: &str| means.get(name).map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
            let mut line = format!("step {step:>4}");
            SHOWN[..3].iter().for_each(|name| line.push_str(&format!("  {name} {}", number(name))));
            if let Some(rejected) = means.get(REJECTED) {
                line.push_str(&format!("  rejected {}", percent(*rejected)));
            }
            if let Some(held_out) = held_out(value("eval_accuracy"), value("eval_reward")) {
                line.push_str(&format!("  held-out {}", held_out.trim_start_matches("accuracy ")));
            }
            line.push_str(&measured.unwrap_or_default());
            self.say(&line);
            self.since.clear();
        }
        if self.steps == PACED {
            self.pace(run);
        }
        Ok(())
    }

    /// Prints how long the rest of the run takes at the pace of its steps so far in this process.
    fn pace(&self, run: &Run) {
        let (step, steps, times) = (run.progress.step, run.config.train.max_steps, run.metrics.total_times());
        let begun = step - self.steps;
        let of = |stage: &str| times.get(stage).map_or(0.0, Duration::as_secs_f64);
        let in_steps = times.values().map(Duration::as_secs_f64).sum::<f64>() - OUTSIDE.map(of).iter().sum::<f64>();
        let evaluated = run.config.evaluations(begun..step) + u64::from(begun == 0);
        let evaluation = of(EVAL) / evaluated.max(1) as f64;
        let rest = (steps - step) as f64 * in_steps / self.steps as f64
            + run.config.evaluations(step..steps) as f64 * evaluation;
        if rest >= LONG {
            let (rest, left) = (terminal::duration(rest), steps - step);
            self.say(&format!(
                "time       about {rest} for the {left} steps that are left, at the pace of the first {PACED}"
            ));
        }
    }

    pub fn closing(&self, run: &Run) {
        self.live.end();
        let progress = &run.progress;
        let ending = best::ending(run);
        let finished = progress.step >= run.config.train.max_steps || ending.is_some();
        self.say("");
        if let Some(ending) = ending {
            self.say(&format!("ended after step {}: {ending}", progress.step));
        }
        if let (Some(best), Some(metric)) = (progress.best, &run.config.train.metric_for_best_model) {
            self.say(&format!("best checkpoint    step {}, {metric} {:.4}", best.step, best.value));
        }
        if finished {
            let known = progress.accuracy.is_some();
            let before = progress.accuracy_before.filter(|_| known);
            let before = held_out(before, progress.held_out_reward_before).unwrap_or_else(|| "-".to_owned());
            if let Some(after) = held_out(progress.accuracy, progress.held_out_reward)
                && let Some((what, after)) = after.split_once(' ')
            {
                let before = before.trim_start_matches(what).trim_start();
                self.say(&format!("held-out {what:<9} {before} -> {after}  ({} prompts, greedy)", run.held_out.len()));
            }
        } else {
            self.say(&format!("stopped after step {} of {}", progress.step, run.config.train.max_steps));
        }
        let (tokens, skipped) = (grouped(progress.completion_tokens), progress.skipped_steps);
        if run.components.masks.is_empty() {
            self.say(&format!("tokens             {tokens}; steps skipped {skipped}"));
        } else {
            let (rejected, share) = (grouped(progress.rejected_tokens), percent(progress.rejected_share()));
            self.say(&format!("tokens rejected    {rejected} of {tokens} ({share}); steps skipped {skipped}"));
        }
        if let Some(line) = run.metrics.watch.as_ref().and_then(Watch::closing).filter(|_| finished) {
            self.say(&line);
        }
        self.times(run);
        if let Some(peak) = memory::peak() {
            self.say(&format!("memory             {} at the fullest", memory::text(peak.into())));
        }
        let checkpoint = checkpoint::dir(run);
        self.say(&format!("run directory      {}", run.dir.display()));
        if checkpoint.exists() {
            self.say(&format!("trained model      {}", checkpoint.display()));
        }
        if !finished {
            self.say(&format!("go on with         host train --resume {}", run.dir.display()));
        }
    }

    fn times(&self, run: &Run) {
        let total = self.started.elapsed().as_secs_f64();
        let times = run.metrics.total_times();
        let mut stages: Vec<(&str, f64)> = times.iter().map(|(stage, time)| (*stage, time.as_secs_f64())).collect();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let in_steps: f64 = stages.iter().filter(|(stage, _)| !OUTSIDE.contains(stage)).map(|(_, time)| time).sum();
        let first = self.first_step.map_or(0.0, |time| time.as_secs_f64());
        let per_step = in_steps / self.steps.max(1) as f64;
        self.say(&format!(
            "time               {total:.1} s; first step done after {first:.2} s; {per_step:.3} s per step"
        ));
        for (stage, time) in stages {
            let share = if OUTSIDE.contains(&stage) {
                "outside the steps".to_owned()
            } else {
                format!("{:>5.1}% of a step", 100.0 * time / in_steps.max(f64::MIN_POSITIVE))
            };
            self.say(&format!("  {stage:<16} {time:>8.2} s  {share}"));
        }
    }
}

/// Quality of answers to held-out prompts: the accuracy, else the mean reward.
fn held_out(accuracy: Option<f64>, reward: Option<f64>) -> Option<String> {
    let accuracy = accuracy.map(|accuracy| format!("accuracy {:.1}%", 100.0 * accuracy));
    accuracy.or_else(|| reward.map(|reward| format!("reward {reward:.3}")))
}

pub fn record_rollout(run: &mut Run, rollout: &SampledRollout) {
    let batch = &rollout.batch;
    let lengths: Vec<usize> = (0..batch.dims.completions as usize)
        .map(|b| batch.completion_mask[batch.dims.row(b)].iter().filter(|&&mask| mask == 1).count())
        .collect();
    run.metrics.extend(metrics::lengths(&lengths, &batch.truncated));
    run.metrics.extend(metrics::rewards(&rollout.rewards, run.config.rollout.num_generations));
    run.metrics.num_tokens += rollout.tokens;
}

pub fn record_step(
    run: &mut Run,
    batch: &StepBatch,
    (accepted, weighed): (&Accepted, &Weighed),
    reduced: &Reduced,
    outcome: Option<StepOutcome>,
) {
    let tokens = batch.completion_tokens();
    let rejected = tokens - accepted.tokens;
    let learning_rate = run.schedule.learning_rate(run.progress.step);
    let taken = outcome.is_some_and(|outcome| outcome.taken);
    run.progress.completion_tokens += tokens;
    run.progress.rejected_tokens += rejected;
    run.progress.skipped_steps += u64::from(!taken);
    let share = |count: u64| count as f64 / tokens.max(1) as f64;
    let resources = &run.resources;
    let (policy, at_once) = (&resources.policy, resources.config.train.per_device_train_batch_size);
    let (computed, distinct) = policy.tokens_of_passes(&batch.sequences, at_once);
    let metrics = &mut run.metrics;
    metrics.record("tokens/computed", computed as f64);
    metrics.record("tokens/distinct", distinct as f64);
    metrics.record("tokens/padding", batch.sequences.padding() as f64);
    let untaught =
        |completion: &usize| batch.advantages[batch.dims.row(*completion)].iter().all(|advantage| *advantage == 0.0);
    let completions = batch.dims.completions as usize;
    let untaught = (0..completions).filter(untaught).count() as f64 / completions.max(1) as f64;
    metrics.record("loss", reduced.loss);
    metrics.record(ZERO_ADVANTAGE, untaught);
    metrics.record("learning_rate", learning_rate);
    metrics.record(REJECTED, share(rejected));
    metrics.record(&format!("mask/{REJECTED_SO_FAR}"), run.progress.rejected_share());
    metrics.record(&format!("mask/{REJECTED_GRADIENT}"), reduced.rejected.iter().sum());
    metrics.record("step_skipped", f64::from(u8::from(!taken)));
    if let Some(outcome) = outcome {
        metrics.record("grad_norm", outcome.grad_norm);
    }
    if let (Some(outcome), SecondMoment::KeptAndRejected) = (outcome, run.resources.config.train.second_moment) {
        metrics.record(REJECTED_GRAD_NORM, outcome.rejected_grad_norm);
        metrics.record(GRAD_NORM_UNMASKED, outcome.grad_norm_unmasked);
        metrics.record(SECOND_PASS_COMPLETIONS, reduced.completions_with_rest(&batch.dims) as f64);
    }
    for (by_mask, gradient) in accepted.rejected.iter().zip(&reduced.rejected) {
        let name = |name: &str| metric_name(Point::Mask, &by_mask.by, name);
        metrics.record(&name(REJECTION_RATE), share(by_mask.tokens.len() as u64));
        metrics.record(&name(REJECTED_GRADIENT), *gradient);
    }
    for (given, away) in weighed.given.iter().zip(&reduced.weighted_away) {
        let name = |name: &str| metric_name(Point::Weight, &given.weight, name);
        let weights = || given.factors.iter().zip(&given.reached).filter(|(_, reached)| **reached == 1);
        let (count, below) = (weights().count().max(1) as f64, weights().filter(|(weight, _)| **weight < 1.0).count());
        metrics.record(&name(MEAN_WEIGHT), weights().map(|(weight, _)| f64::from(*weight)).sum::<f64>() / count);
        metrics.record(&name(BELOW_ONE), below as f64 / count);
        metrics.record(&name(WEIGHTED_AWAY), *away);
    }
    let real = batch.entropy.iter().zip(&batch.completion_mask).filter(|(_, mask)| **mask == 1);
    metrics.record("entropy", real.map(|(entropy, _)| f64::from(*entropy)).sum::<f64>() / tokens.max(1) as f64);
    if let Some(sampler) = &batch.sampler_logps {
        metrics.extend(metrics::mismatch(&batch.old_logps, sampler, &batch.completion_mask, batch.dims));
    }
}
