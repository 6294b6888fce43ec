//! Lines of a run: its header, a line every few steps, and a closing summary. Programs read the
//! metrics instead.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use capo_plugin::Inputs;
use capo_system::memory;
use host_model::Adapter;
use host_model::device::{self, Dtype};

use super::live::Live;
use super::{grouped, percent, say, word, words};
use crate::benchmark;
use crate::estimate::memory::Estimate;
use crate::estimate::time::{measure, measure_passes};
use crate::exam::RightAnswer;
use crate::metrics::lines::Lines;
use crate::metrics::names::{FOUND_RATE, REJECTED};
use crate::metrics::{FoundRates, Line};
use crate::run::{METRICS_FILE, Resources, Run, best, checkpoint};
use crate::stages::logps::asked;
use crate::train::Observer;

/// The progress of a run on the terminal.
pub struct ProgressLines {
    started: Instant,
    first_step: Option<Duration>,
    steps: u64,
    /// Steps that the run is to have.
    planned: u64,
    /// Sum and number of the values of each of [`SHOWN`] since the last line.
    since: BTreeMap<&'static str, (f64, u32)>,
    /// True once the learning rate that a step control found was told.
    told_rate: bool,
    live: Live,
}

/// Metrics of a step's line, as means over the steps since the last one: a single step's rewards
/// are noise.
const SHOWN: [&str; 4] = ["reward", "entropy", "grad_norm", REJECTED];
/// Stages that are timed, but are not part of a step.
const OUTSIDE: [&str; 2] = [EVAL, "checkpoint"];
const EVAL: &str = "eval";
/// Number of steps after which a run says how long it takes.
const PACED: u64 = 3;
/// Least duration that is said, seconds.
const LONG: f64 = 60.0;

impl ProgressLines {
    /// The progress of a process that started at `started`, for a run of `steps` steps of which
    /// `done` are done.
    pub fn new(started: Instant, steps: u64, done: u64) -> Self {
        let live = Live::new(steps, done);
        Self {
            started,
            first_step: None,
            steps: 0,
            planned: steps,
            since: BTreeMap::new(),
            told_rate: false,
            live,
        }
    }

    /// Prints a separate line above the live one.
    pub fn say(&self, line: &str) {
        self.live.aside(|| say(line));
    }

    /// Prints the header of a run in `dir`; `sources` are lines about the origin of the settings.
    pub fn opening(&self, resources: &Resources, dir: &Path, sources: &[String]) {
        let Resources {
            config,
            policy,
            dataset,
            components,
            ..
        } = resources;
        let masks: Vec<&str> = components
            .deciders
            .masks
            .iter()
            .map(capo_plugin::MaskHandle::id)
            .collect();
        let masks = if masks.is_empty() {
            "none".to_owned()
        } else {
            masks.join(", ")
        };
        self.say(&format!(
            "model      {} ({} \
             parameters{})\ndata       {}\nadvantage  {}\nobjective  {}\nmasks      {masks}",
            config.model.model_name_or_path,
            grouped(policy.weights().element_count() as u64),
            if policy.is_counted() {
                ", counted: it has no weights"
            } else {
                ""
            },
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
        let weights: Vec<&str> = components
            .deciders
            .weights
            .iter()
            .map(capo_plugin::WeightHandle::id)
            .collect();
        let controls: Vec<&str> = components
            .step_controls
            .iter()
            .map(capo_plugin::StepControlHandle::id)
            .collect();
        for (title, list) in [("weights", weights), ("step", controls)]
            .iter()
            .filter(|(_, list)| !list.is_empty())
        {
            self.say(&format!("{title:<10} {}", list.join(", ")));
        }
        sources.iter().for_each(|line| self.say(line));
        if config.eval.num_prompts > 0 || !config.eval.benchmark.is_empty() {
            self.say(&format!("right      {}", RightAnswer::of(config)));
        }
        if config.train.device != device::CPU || config.train.dtype != Dtype::F32 {
            let dtype = candle_core::DType::from(config.train.dtype);
            let mut line = format!("device     {}, {}", config.train.device, dtype.as_str());
            if let Some(gpu) = device::memory::described(&config.train.device) {
                let products = if device::tf32::is_on() { "TF32" } else { "f32" };
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
        if resources.saves {
            self.say(&format!("saves      {}", words::saving(&config.train)));
        }
        self.say(&format!(
            "run        {} ({} steps of {} completions, seed {})",
            dir.display(),
            self.planned,
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

    /// Prints the adapter's size, and a line about components that predict steps of the last layer,
    /// which stays frozen.
    fn adapter(&self, resources: &Resources, adapter: &Adapter) {
        let trained = adapter.params().element_count();
        let frozen = resources.policy.weights().element_count();
        self.say(&format!(
            "lora       {}; trainable {} of {}",
            words::adapter(adapter),
            grouped(trained as u64),
            grouped((trained + frozen) as u64)
        ));
        // Neither the advantage nor the objective predicts a step.
        let components = asked(&resources.components)
            .skip(2)
            .filter(|(_, inputs)| inputs.contains(Inputs::LAST_LAYER));
        let looking = components.map(|(id, _)| id).collect::<Vec<_>>().join(", ");
        if !looking.is_empty() {
            self.say(&format!(
                "head       frozen; {looking} predicts the step that it would take \
             if it were trained"
            ));
        }
    }

    /// Prints the number of tokens of prompts and completions together, as in `num_tokens`, and of
    /// completions alone.
    fn tokens(&self, run: &Run) {
        let progress = &run.progress;
        let all = grouped(progress.num_tokens);
        let completions = grouped(progress.completion_tokens);
        let skipped = progress.skipped_steps;
        self.say(&format!(
            "tokens             {all}, of which {completions} in completions; steps skipped \
             {skipped}"
        ));
        if !run.resources.components.deciders.masks.is_empty() {
            let rejected = grouped(progress.rejected_tokens);
            let share = percent(progress.rejected_share());
            self.say(&format!(
                "tokens rejected    {rejected} of {completions} in completions ({share})"
            ));
        }
    }

    /// Prints how long the rest of the run takes at the pace of its steps so far in this process.
    fn pace(&self, run: &Run) {
        let config = run.config();
        let step = run.progress.step;
        let steps = self.planned.max(step);
        let times = run.observers.metrics.total_times();
        let begun = step - self.steps;
        let mut in_steps = times.values().map(Duration::as_secs_f64).sum::<f64>();
        for stage in OUTSIDE {
            in_steps -= times.get(stage).map_or(0.0, Duration::as_secs_f64);
        }
        let evaluated = config.evaluations(begun..step) + u64::from(begun == 0);
        let evaluation =
            times.get(EVAL).map_or(0.0, Duration::as_secs_f64) / evaluated.max(1) as f64;
        let rest = (steps - step) as f64 * in_steps / self.steps as f64
            + config.evaluations(step..steps) as f64 * evaluation;
        if rest >= LONG {
            let rest = super::duration(rest);
            let left = steps - step;
            self.say(&format!(
                "time       about {rest} for the {left} steps that are left, at the pace of the \
                 first {PACED}"
            ));
        }
    }

    /// Removes the live line.
    pub fn end(&self) {
        self.live.end();
    }

    pub fn closing(&self, run: &Run) {
        self.end();
        let progress = &run.progress;
        let ending = best::ending(run);
        let finished = best::is_done(run);
        self.say("");
        if let Some(ending) = ending {
            self.say(&format!("ended after step {}: {ending}", progress.step));
        }
        if let (Some(best), Some(metric)) =
            (&progress.best, &run.config().train.metric_for_best_model)
        {
            let before = better_before(run, metric, best.value).map_or(String::new(), |before| {
                format!("; the model before training was better: {before:.4}")
            });
            self.say(&format!(
                "best checkpoint    step {}, {metric} {:.4}{before}",
                best.step, best.value
            ));
        }
        if finished {
            let known = progress.accuracy.is_some();
            let before = progress.accuracy_before.filter(|_| known);
            let before =
                held_out(before, progress.held_out_reward_before).unwrap_or_else(|| "-".to_owned());
            if let Some(after) = held_out(progress.accuracy, progress.held_out_reward)
                && let Some((what, after)) = after.split_once(' ')
            {
                let before = before.trim_start_matches(what).trim_start();
                self.say(&format!(
                    "held-out {what:<9} {before} -> {after}  ({} prompts, greedy)",
                    run.resources.held_out.len()
                ));
            }
        } else {
            self.say(&format!(
                "stopped after step {} of {}",
                progress.step,
                run.config().train.max_steps
            ));
        }
        self.rates(run);
        self.tokens(run);
        if let Some(line) = run.observers.watch.closing().filter(|_| finished) {
            self.say(&line);
        }
        self.times(run);
        if let Some(peak) = memory::peak() {
            let gpu = device::memory::taken(&run.config().train.device);
            let gpu = gpu.map_or_else(String::new, |bytes| {
                let bytes = memory::text(bytes.into());
                format!("{bytes} of the GPU and, of the machine, ")
            });
            self.say(&format!(
                "memory             {gpu}{} at the fullest",
                memory::text(peak.into())
            ));
        }
        let checkpoint = checkpoint::dir(run);
        self.say(&format!("run directory      {}", run.dir.display()));
        if checkpoint.exists() {
            self.say(&format!("trained model      {}", checkpoint.display()));
        }
        if !finished {
            self.say(&format!(
                "go on with         host train --resume {}",
                word(&run.dir)
            ));
        }
    }

    /// The learning rates that a step control found, if they are several.
    fn rates(&self, run: &Run) {
        let Ok(lines) = Lines::read(&run.dir.join(METRICS_FILE)) else {
            return;
        };
        let controls = &run.resources.components.step_controls;
        let rates = controls.iter().find_map(|control| {
            let column = lines.column(&format!("{}/{FOUND_RATE}", control.id()));
            FoundRates::of(column.numbers().map(|(_, rate)| rate))
        });
        if let Some(rates) = rates.filter(|rates| rates.lowest < rates.highest) {
            self.say(&words::found_rates(rates));
        }
    }

    /// Tells the learning rate that a step control found, in the first line that has it.
    fn found_rate(&mut self, run: &Run, line: &Line) {
        if let Some(rate) = found_rate(run, line).filter(|_| !self.told_rate) {
            self.told_rate = true;
            self.say(&words::found_rate(rate, run.config().train.learning_rate));
        }
    }

    fn times(&self, run: &Run) {
        let total = self.started.elapsed().as_secs_f64();
        let times = run.observers.metrics.total_times();
        let mut stages: Vec<(&str, f64)> = times
            .iter()
            .map(|(stage, time)| (*stage, time.as_secs_f64()))
            .collect();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let in_steps: f64 = stages
            .iter()
            .filter(|(stage, _)| !OUTSIDE.contains(stage))
            .map(|(_, time)| time)
            .sum();
        let first = self.first_step.map_or(0.0, |time| time.as_secs_f64());
        let per_step = in_steps / self.steps.max(1) as f64;
        self.say(&format!(
            "time               {total:.1} s; first step done after {first:.2} s; {per_step:.3} s \
             per step"
        ));
        for (stage, time) in stages {
            let share = if OUTSIDE.contains(&stage) {
                "outside the steps".to_owned()
            } else {
                format!(
                    "{:>5.1}% of a step",
                    100.0 * time / in_steps.max(f64::MIN_POSITIVE)
                )
            };
            self.say(&format!("  {stage:<16} {time:>8.2} s  {share}"));
        }
    }
}

/// The metric's value before training, if it was better than `best`, the value of the best
/// checkpoint.
fn better_before(run: &Run, metric: &str, best: f64) -> Option<f64> {
    let lines = Lines::read(&run.dir.join(METRICS_FILE)).ok()?;
    let (_, values) = lines.rows().next().filter(|(step, _)| *step == 0)?;
    let before = *values.get(metric)?;
    let is_better = if run.config().train.is_greater_better() {
        before > best
    } else {
        before < best
    };
    is_better.then_some(before)
}

/// The learning rate that a step control found, at this step; `None` before its first steps have
/// told one.
pub fn found_rate(run: &Run, line: &Line) -> Option<f64> {
    let controls = &run.resources.components.step_controls;
    controls
        .iter()
        .find_map(|control| line.value(&format!("{}/{FOUND_RATE}", control.id())))
}

/// Quality of answers to held-out prompts: the accuracy, else the mean reward.
fn held_out(accuracy: Option<f64>, reward: Option<f64>) -> Option<String> {
    let accuracy = accuracy.map(|accuracy| format!("accuracy {:.1}%", 100.0 * accuracy));
    accuracy.or_else(|| reward.map(|reward| format!("reward {reward:.3}")))
}

impl Observer for ProgressLines {
    fn line(&mut self, run: &Run, line: &Line) {
        if line.step == 0 {
            if let Some(held_out) = held_out(line.value("eval_accuracy"), line.value("eval_reward"))
            {
                self.say(&format!("held-out {held_out} before training"));
            }
            if let Some(measured) = benchmark::shown(&line.values) {
                self.say(&format!("benchmarks{measured}  before training"));
            }
            return;
        }
        self.steps += 1;
        self.first_step
            .get_or_insert_with(|| self.started.elapsed());
        let is_masked = !run.resources.components.deciders.masks.is_empty();
        for name in SHOWN
            .into_iter()
            .filter(|name| is_masked || *name != REJECTED)
        {
            if let Some(value) = line.value(name) {
                let (sum, count) = self.since.entry(name).or_default();
                *sum += value;
                *count += 1;
            }
        }
        let means = self
            .since
            .iter()
            .map(|(name, (sum, count))| (*name, sum / f64::from(*count)));
        let means: BTreeMap<&str, f64> = means.collect();
        self.live.step(line, &means);
        let config = run.config();
        let measured = benchmark::shown(&line.values);
        let reward = line.value("eval_reward");
        if line.step == 1
            || line.step == config.train.max_steps
            || line.step.is_multiple_of(config.logging.logging_steps)
            || reward.is_some()
            || measured.is_some()
        {
            let mut text = format!("step {:>4}", line.step);
            for name in &SHOWN[..3] {
                text += &match means.get(name) {
                    Some(value) => format!("  {name} {value:.3}"),
                    None => format!("  {name} -"),
                };
            }
            if let Some(rejected) = means.get(REJECTED) {
                text.push_str(&format!("  rejected {}", percent(*rejected)));
            }
            if let Some(held_out) = held_out(line.value("eval_accuracy"), reward) {
                text.push_str(&format!(
                    "  held-out {}",
                    held_out.trim_start_matches("accuracy ")
                ));
            }
            text.push_str(&measured.unwrap_or_default());
            self.say(&text);
            self.since.clear();
        }
        self.found_rate(run, line);
        if self.steps == PACED {
            self.pace(run);
        }
    }

    /// Prints a warning above the live line.
    fn warn(&mut self, warning: &str) {
        self.live.aside(|| super::warn(warning));
    }
}

/// A step of less than this share of another is measurably shorter: measurements of one step differ
/// by a tenth.
const MEASURABLE: f64 = 0.85;

/// Lines for the run's header: the time of the whole run, and of each part of a step.
pub fn pace(resources: &mut Resources, estimate: &Estimate) -> Vec<String> {
    let (parts, evaluation) = match measure(resources, estimate) {
        Ok(measured) => measured,
        Err(error) => return vec![format!("time       not measured: {error:#}")],
    };
    let config = &resources.config;
    let steps = config.train.max_steps;
    let step: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let mut all = step * steps as f64;
    let mut evaluated = String::new();
    if evaluation > 0.0 {
        // The first comes before training.
        let count = 1 + config.evaluations(0..steps);
        all += evaluation * count as f64;
        evaluated = format!(" and {count} evaluations of {}", shown(evaluation));
    }
    let tokens =
        config.sizes.step * (estimate.prompt_tokens + config.rollout.max_completion_length);
    let all = super::duration(all);
    let step = shown(step);
    let tokens = grouped(tokens as u64);
    let first = format!(
        "time       about {all} if every completion has its full length ({tokens} tokens a step): \
         {steps} steps of {step}{evaluated}"
    );
    let parts = parts
        .iter()
        .map(|(name, seconds)| format!("  {name:<32} {:>10}", shown(*seconds)));
    std::iter::once(first).chain(parts).collect()
}

/// A line for the run's header if its steps are shorter in the other dtype on this processor.
/// `None` also where they cannot be measured, and on a GPU, where bf16 is the faster one.
pub fn faster_dtype(resources: &mut Resources) -> Option<String> {
    if !resources.policy.device().is_cpu() {
        return None;
    }
    let own = resources.config.train.dtype;
    let mut seconds = |dtype: Dtype| {
        resources.config.train.dtype = dtype;
        resources.policy = resources.policy.share().with_dtype(dtype.into());
        let estimate = Estimate::of(resources)?;
        measure_passes(resources, &estimate)
    };
    // A busy machine makes one measurement long, so that two have to agree.
    let mut share: f64 = 0.0;
    for _ in 0..2 {
        // Its own dtype comes last, and stays.
        let [other, own] = [own.other(), own].map(&mut seconds);
        share = share.max(other.ok()? / own.ok()?);
        if share > MEASURABLE {
            return None;
        }
    }
    let name = candle_core::DType::from(own.other()).as_str();
    Some(format!(
        "dtype      in {name} a step takes {share:.2} times as long on this machine (`--set \
         train.dtype={name}`)"
    ))
}

/// A duration of any length; a small model's steps take milliseconds.
fn shown(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", 1000.0 * seconds)
    } else {
        super::duration(seconds)
    }
}
