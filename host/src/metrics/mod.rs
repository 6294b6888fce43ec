//! Metrics of a run: one JSON object per step in `metrics.jsonl`, under TRL's names.

pub mod completions;
pub mod journal;
mod mismatch;
pub mod names;
mod rollout;
pub mod sink;
mod tensorboard;
mod timer;

pub use mismatch::mismatch;
pub use rollout::{lengths, rewards};
pub use tensorboard::EventFile;
pub use timer::Timer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use capo_loader::files;
use serde::Serialize;

use crate::warnings::Watch;
use timer::Timers;

/// Metric names and values, as the functions of this module return them for [`Metrics::extend`].
pub type Values = Vec<(String, f64)>;

/// Collects the values of one step at a time and writes them to `metrics.jsonl`.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    /// TensorBoard's event file, if the user asks for it.
    pub events: Option<EventFile>,
    /// Masks, weights and step controls of which trackers are told the main metrics alone.
    pub brief: Vec<String>,
    /// Checks of every step for warnings, if the metrics belong to a run.
    pub watch: Option<Watch>,
    /// Sum and number of the values recorded for each name since the last flush.
    values: BTreeMap<String, (f64, u32)>,
    /// Values of the rollout, which are written in the line of every step that uses it.
    held: BTreeMap<String, (f64, u32)>,
    /// The component that recorded each name.
    owners: BTreeMap<String, String>,
    timers: Timers,
    /// Number of prompt and completion tokens processed since step 0, which is written with every step (TRL), and in checkpoints.
    pub num_tokens: u64,
    warnings: Vec<String>,
    /// Names with a warning in this process.
    warned: BTreeSet<String>,
}

/// The JSON object of one step: `step` comes first, then the values in the order of their names. Values that are not finite become null.
#[derive(Serialize)]
struct Line<'a> {
    step: u64,
    #[serde(flatten)]
    values: &'a BTreeMap<String, f64>,
}

/// The written line of one step, and its warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct Flushed {
    /// All values of the step. A value that is not finite is null in the file.
    pub values: BTreeMap<String, f64>,
    /// Warnings for the user, each shown once per process.
    pub warnings: Vec<String>,
}

impl Metrics {
    /// Metrics that append to the file at `path`; `num_tokens` is the checkpointed [`Metrics::num_tokens`].
    pub fn new(path: PathBuf, num_tokens: u64) -> Self {
        Metrics {
            path,
            events: None,
            brief: Vec::new(),
            watch: None,
            values: BTreeMap::new(),
            held: BTreeMap::new(),
            owners: BTreeMap::new(),
            timers: Timers::default(),
            num_tokens,
            warnings: Vec::new(),
            warned: BTreeSet::new(),
        }
    }

    /// Marks the values since the last flush as the rollout's. They are written in every line until the next rollout.
    pub fn hold(&mut self) {
        self.held = std::mem::take(&mut self.values);
    }

    /// Records one value of `component` under `name`.
    pub fn record_of(&mut self, component: &str, name: &str, value: f64) -> Result<(), String> {
        let owner = self.owners.entry(name.to_owned()).or_insert_with(|| component.to_owned());
        if owner != component {
            return Err(format!("recorded `{name}`, as component `{owner}` does (rename one of them)"));
        }
        self.record(name, value);
        Ok(())
    }

    /// Records one value under `name`. Several values in one step are written as their mean, as in TRL.
    pub fn record(&mut self, name: &str, value: f64) {
        let entry = self.values.entry(name.to_string()).or_insert((0.0, 0));
        *entry = (entry.0 + value, entry.1 + 1);
    }

    /// Records each pair of `values`.
    pub fn extend(&mut self, values: Values) {
        for (name, value) in values {
            self.record(&name, value);
        }
    }

    /// Mean of the values recorded under `name` for the current step; `None` without a value.
    pub fn value(&self, name: &str) -> Option<f64> {
        let (sum, count) = self.values.get(name).or_else(|| self.held.get(name))?;
        Some(sum / f64::from(*count))
    }

    /// Names of the values recorded for the current step.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().chain(self.held.keys()).map(String::as_str)
    }

    /// Times `stage` until the returned guard is dropped. The metric `timing_s/<stage>` is in seconds, summed over the step.
    #[must_use = "the time ends when the guard is dropped"]
    pub fn timer(&self, stage: &'static str) -> Timer {
        self.timers.start(stage)
    }

    /// Total time per stage in this process, for the closing summary.
    pub fn total_times(&self) -> BTreeMap<&'static str, Duration> {
        self.timers.totals()
    }

    /// Writes everything recorded since the last flush as one line, `step` first, and starts the next step.
    ///
    /// Values that are not finite are written as null, with one warning per name. Findings of the run's watch also become warnings, and
    /// have their own metric in the line. A failed write is an error.
    pub fn flush(&mut self, step: u64) -> Result<Flushed> {
        let step_values = std::mem::take(&mut self.values);
        let mut values: BTreeMap<String, f64> = (self.held.clone().into_iter())
            .chain(step_values)
            .map(|(name, (sum, count))| (name, sum / f64::from(count)))
            .collect();
        values.insert("num_tokens".into(), self.num_tokens as f64);
        for (stage, time) in self.timers.take_step() {
            values.insert(format!("timing_s/{stage}"), time.as_secs_f64());
        }
        for (name, value) in values.iter().filter(|(_, value)| !value.is_finite()) {
            if self.warned.insert(name.clone()) {
                self.warnings.push(format!("metric `{name}` is {value} at step {step}: written as null (told once)"));
            }
        }
        let found = self.watch.as_mut().map_or_else(Vec::new, |watch| watch.step(step, &values));
        for finding in found {
            values.insert(finding.metric(), 1.0);
            self.warnings.push(format!("step {step}: {}", finding.line()));
        }
        files::append_line(&self.path, &serde_json::to_string(&Line { step, values: &values })?)?;
        let told = values.iter().filter(|(name, _)| names::is_main(name, &self.brief));
        self.events.as_mut().map_or(Ok(()), |events| events.write(step, told))?;
        Ok(Flushed { values, warnings: std::mem::take(&mut self.warnings) })
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Metrics, and the folder of their file.
    fn metrics() -> (Metrics, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (Metrics::new(folder.path().join("metrics.jsonl"), 0), folder)
    }

    fn lines(metrics: &Metrics) -> Vec<String> {
        std::fs::read_to_string(&metrics.path).unwrap().lines().map(String::from).collect()
    }

    #[test]
    fn a_step_is_one_ordered_line() {
        let (mut metrics, _folder) = metrics();
        metrics.record("reward", 0.5);
        metrics.extend(vec![("loss".into(), 1.0), ("loss".into(), 2.0)]);
        metrics.num_tokens += 7;
        let flushed = metrics.flush(1).unwrap();
        assert_eq!(flushed.values["loss"], 1.5);
        metrics.num_tokens += 3;
        metrics.flush(2).unwrap();
        assert_eq!(
            lines(&metrics),
            ["{\"step\":1,\"loss\":1.5,\"num_tokens\":7.0,\"reward\":0.5}", "{\"step\":2,\"num_tokens\":10.0}"]
        );
    }

    #[test]
    fn values_that_are_not_finite_become_null_with_one_warning_each() {
        let (mut metrics, _folder) = metrics();
        metrics.record("kl", f64::NAN);
        metrics.record("loss", f64::INFINITY);
        let warnings = metrics.flush(1).unwrap().warnings;
        assert_eq!(warnings.len(), 2);
        assert_eq!(warnings[0], "metric `kl` is NaN at step 1: written as null (told once)");
        assert_eq!(lines(&metrics), ["{\"step\":1,\"kl\":null,\"loss\":null,\"num_tokens\":0.0}"]);
        metrics.record("kl", f64::NEG_INFINITY);
        assert!(metrics.flush(2).unwrap().warnings.is_empty());
    }

    #[test]
    fn a_name_has_one_owner() {
        let mut metrics = Metrics::new(PathBuf::from("metrics.jsonl"), 0);
        for _ in 0..2 {
            metrics.record_of("a.advantage", "spread", 1.0).unwrap();
            let refused = metrics.record_of("b.objective", "spread", 3.0).unwrap_err();
            assert_eq!(refused, "recorded `spread`, as component `a.advantage` does (rename one of them)");
        }
        metrics.record_of("b.objective", "kl", 3.0).unwrap();
        assert_eq!(metrics.values["spread"], (2.0, 2));
    }

    #[test]
    fn timers_sum_within_a_step_and_over_the_run() {
        let (mut metrics, _folder) = metrics();
        let mut seconds = Vec::new();
        for step in 1..=2 {
            for _ in 0..2 {
                let timer = metrics.timer("rollout");
                metrics.record("inside", 1.0);
                drop(metrics.timer("reward"));
                drop(timer);
            }
            assert_eq!(metrics.total_times().len(), 2, "the open step counts");
            seconds.push(metrics.flush(step).unwrap().values["timing_s/rollout"]);
        }
        let total = metrics.total_times()["rollout"].as_secs_f64();
        assert!((total - seconds.iter().sum::<f64>()).abs() < 1e-9);
        assert!(metrics.total_times()["reward"] <= metrics.total_times()["rollout"]);
        assert!(!metrics.flush(3).unwrap().values.contains_key("timing_s/rollout"));
    }

    #[test]
    fn a_rollouts_values_stand_in_every_line_that_uses_it() {
        let (mut metrics, _folder) = metrics();
        for reward in [0.5, 0.25] {
            metrics.record("reward", reward);
            metrics.hold();
            for step in 0..2 {
                metrics.record("loss", 1.0);
                let values = metrics.flush(step).unwrap().values;
                assert_eq!((values["reward"], values["loss"]), (reward, 1.0));
            }
        }
    }
}
