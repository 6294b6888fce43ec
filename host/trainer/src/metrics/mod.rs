//! Metrics of a run, under TRL's names: the records of a rollout, its steps and evaluations become
//! one line per step.

pub mod completions;
pub mod journal;
mod line;
pub mod lines;
mod mismatch;
pub mod names;
mod rollout;
mod step;
pub mod table;
mod tensorboard;

pub use line::{Line, Values};
pub use mismatch::mismatch;
pub use rollout::episodes;
pub use tensorboard::Tensorboard;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::stages::owners::{Owner, Owners, reserved};
use crate::stages::record::StepRecord;
use crate::stages::recorder::{Recorded, Times};
use crate::stages::rollout::RolloutRecord;

/// Sum and number of the values of each name. Several values of a step are written as their mean,
/// as in TRL.
type Sums = BTreeMap<String, (f64, u32)>;

fn add(sums: &mut Sums, name: String, value: f64) {
    let sum = sums.entry(name).or_default();
    *sum = (sum.0 + value, sum.1 + 1);
}

fn add_times(to: &mut Times, from: &Times) {
    from.iter()
        .for_each(|(stage, time)| *to.entry(stage).or_default() += *time);
}

fn mean((sum, count): &(f64, u32)) -> f64 {
    sum / f64::from(*count)
}

/// Collects the metrics of one step at a time.
#[derive(Debug)]
pub struct Metrics {
    pub owners: Owners,
    /// Values of the rollout, which are in the line of every step that uses it.
    rollout: Sums,
    /// Values of the step since the last line.
    step: Sums,
    /// Times since the last line, and before it in this process.
    times: [Times; 2],
    last_line: Instant,
}

impl Default for Metrics {
    fn default() -> Self {
        let (owners, [rollout, step]) = (Owners::default(), [const { BTreeMap::new() }; 2]);
        Self {
            owners,
            rollout,
            step,
            times: Default::default(),
            last_line: Instant::now(),
        }
    }
}

impl Metrics {
    /// Adds a rollout, in place of the last one.
    ///
    /// # Errors
    ///
    /// When a component uses a name of the host, in this function and in `step`.
    pub fn rollout(&mut self, record: &RolloutRecord) -> Result<()> {
        self.rollout = self.merged(rollout::rollout(record), &record.recorded)?;
        Ok(())
    }

    /// Adds a step; `rejected_so_far` is the rejected share of the run's tokens.
    pub fn step(&mut self, record: &StepRecord, rejected_so_far: f64) -> Result<()> {
        self.step = self.merged(step::step(record, rejected_so_far), &record.recorded)?;
        Ok(())
    }

    /// Adds values of the host, as of an evaluation.
    pub fn extend(&mut self, values: Values) -> Result<()> {
        let values = self.merged(values, &Recorded::default())?;
        self.step.extend(values);
        Ok(())
    }

    pub fn add_time(&mut self, stage: &'static str, since: Instant) {
        *self.times[0].entry(stage).or_default() += since.elapsed();
    }

    /// The host's `values` beside those that components recorded: sum and number of the values of
    /// each name.
    fn merged(&mut self, values: Values, recorded: &Recorded) -> Result<Sums> {
        add_times(&mut self.times[0], &recorded.times);
        for (name, _) in &values {
            if let Err(Owner::Component(component)) = self.owners.claim(name, Owner::Host) {
                bail!("component `{component}`: {}", reserved(name));
            }
        }
        let mut merged = Sums::new();
        recorded
            .numbers
            .iter()
            .cloned()
            .chain(values)
            .for_each(|(name, value)| add(&mut merged, name, value));
        Ok(merged)
    }

    /// Value of `name` for the current step; `None` without one.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.step
            .get(name)
            .or_else(|| self.rollout.get(name))
            .map(mean)
    }

    /// Names of the values for the current step.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.step
            .keys()
            .chain(self.rollout.keys())
            .map(String::as_str)
    }

    /// Total time per stage in this process.
    pub fn total_times(&self) -> Times {
        let [now, mut all] = self.times.clone();
        add_times(&mut all, &now);
        all
    }

    /// The line of `step`, which ends it. Before the step, `num_tokens` tokens were processed and
    /// `num_completions` sampled.
    pub fn line(&mut self, step: u64, num_tokens: u64, num_completions: u64) -> Line {
        let mut own = std::mem::take(&mut self.step);
        let mut record = |name: &str, value: f64| add(&mut own, name.to_owned(), value);
        record("num_tokens", num_tokens as f64);
        record("num_completions", num_completions as f64);
        if step > 0 {
            record("step_time", self.last_line.elapsed().as_secs_f64());
            self.last_line = Instant::now();
        }
        let times = std::mem::take(&mut self.times[0]);
        times
            .iter()
            .for_each(|(stage, time)| record(&format!("timing_s/{stage}"), time.as_secs_f64()));
        add_times(&mut self.times[1], &times);
        let values = self
            .rollout
            .iter()
            .chain(&own)
            .map(|(name, sum)| (name.clone(), mean(sum)));
        Line {
            step,
            values: values.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::reward::Scored;

    fn rollout(reward: f32, numbers: &[(&str, f64)]) -> RolloutRecord {
        let rewards = Scored {
            total: vec![reward],
            per_reward: Vec::new(),
        };
        let times = [("rollout", Duration::from_millis(7))].into();
        let numbers = numbers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        let (lengths, truncated, recorded) = (
            vec![1],
            vec![0],
            Recorded {
                numbers,
                arrays: Vec::new(),
                times,
            },
        );
        RolloutRecord {
            lengths,
            truncated,
            group_size: 1,
            rewards,
            recorded,
            ..RolloutRecord::default()
        }
    }

    #[test]
    fn a_rollouts_values_stand_in_every_line_that_uses_it_and_its_time_in_the_first() {
        let mut metrics = Metrics::default();
        for reward in [0.5, 0.25] {
            metrics
                .rollout(&rollout(reward, &[("spread", 1.0), ("spread", 2.0)]))
                .unwrap();
            for step in 1..=2 {
                metrics.extend(vec![("loss".into(), 1.0)]).unwrap();
                assert_eq!(metrics.value("reward"), Some(f64::from(reward)));
                let line = metrics.line(step, 7, 1);
                let values =
                    ["reward", "spread", "loss", "num_tokens"].map(|name| line.values[name]);
                assert_eq!(values, [reward.into(), 1.5, 1.0, 7.0]);
                assert_eq!(line.value("timing_s/rollout"), (step == 1).then_some(0.007));
                assert!(
                    serde_json::to_string(&line)
                        .unwrap()
                        .starts_with(&format!("{{\"step\":{step},\"compl"))
                );
            }
            assert_eq!(metrics.line(3, 7, 1).value("loss"), None);
        }
        assert_eq!(metrics.total_times()["rollout"], Duration::from_millis(14));
    }

    #[test]
    fn a_name_has_one_owner() {
        let component = |name: &str| Owner::Component(name.to_owned());
        let mut metrics = Metrics::default();
        assert_eq!(
            metrics.owners.claim("reward", component("a.reward")),
            Ok(())
        );
        assert_eq!(
            metrics.owners.claim("reward", component("b.objective")),
            Err(component("a.reward"))
        );
        let error = metrics.rollout(&rollout(1.0, &[])).unwrap_err().to_string();
        assert!(
            error.starts_with("component `a.reward`: recorded `reward`, which is the host's own"),
            "{error}"
        );
        let mut metrics = Metrics::default();
        metrics.rollout(&rollout(1.0, &[])).unwrap();
        assert_eq!(
            metrics.owners.claim("reward", component("a.reward")),
            Err(Owner::Host)
        );
    }
}
