//! Metrics of a run, under TRL's names: the records of a rollout, its steps and evaluations become
//! one line per step.

pub mod completions;
mod found_rates;
pub mod journal;
mod line;
pub mod lines;
mod mismatch;
pub mod names;
mod rollout;
mod step;
pub mod table;
mod tensorboard;

pub use found_rates::FoundRates;
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

/// The values of each name. Several values of a step are written as their mean, as in TRL.
type Sums = BTreeMap<String, Sum>;

/// Sum and number of some values.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    sum: f64,
    count: u32,
}

impl Sum {
    fn mean(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

fn add(sums: &mut Sums, name: String, value: f64) {
    let sum = sums.entry(name).or_default();
    sum.sum += value;
    sum.count += 1;
}

fn add_times(to: &mut Times, from: &Times) {
    for (stage, time) in from {
        *to.entry(stage).or_default() += *time;
    }
}

/// Collects the metrics of one step at a time.
#[derive(Debug)]
pub struct Metrics {
    pub owners: Owners,
    /// Values of the rollout, which are in the line of every step that uses it.
    rollout: Sums,
    /// Values of the step since the last line.
    step: Sums,
    /// Times since the last line.
    times: Times,
    /// Times before the last line, in this process.
    earlier_times: Times,
    last_line: Instant,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            owners: Owners::default(),
            rollout: Sums::new(),
            step: Sums::new(),
            times: Times::new(),
            earlier_times: Times::new(),
            last_line: Instant::now(),
        }
    }
}

impl Metrics {
    /// Replaces the values of the last rollout by those of `record`.
    ///
    /// # Errors
    ///
    /// When a component uses a name of the host, here and in [`Self::step`].
    pub fn rollout(&mut self, record: &RolloutRecord) -> Result<()> {
        self.rollout = self.merged(rollout::rollout(record), &record.recorded)?;
        Ok(())
    }

    /// Adds a step; `rejected_so_far` is the rejected share of the run's tokens.
    pub fn step(&mut self, record: &StepRecord, rejected_so_far: f64) -> Result<()> {
        self.step = self.merged(step::step(record, rejected_so_far), &record.recorded)?;
        Ok(())
    }

    /// Adds values of the host, for example those of an evaluation.
    pub fn extend(&mut self, values: Values) -> Result<()> {
        let values = self.merged(values, &Recorded::default())?;
        self.step.extend(values);
        Ok(())
    }

    pub fn add_time(&mut self, stage: &'static str, since: Instant) {
        *self.times.entry(stage).or_default() += since.elapsed();
    }

    /// The host's `values` together with those that components recorded. The host becomes the owner
    /// of its names.
    fn merged(&mut self, values: Values, recorded: &Recorded) -> Result<Sums> {
        add_times(&mut self.times, &recorded.times);
        for (name, _) in &values {
            if let Err(Owner::Component(component)) = self.owners.claim(name, Owner::Host) {
                bail!("component `{component}`: {}", reserved(name));
            }
        }
        let mut merged = Sums::new();
        for (name, value) in recorded.numbers.iter().cloned().chain(values) {
            add(&mut merged, name, value);
        }
        Ok(merged)
    }

    /// Value of `name` for the current step; `None` without one.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.step
            .get(name)
            .or_else(|| self.rollout.get(name))
            .map(Sum::mean)
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
        let mut all = self.earlier_times.clone();
        add_times(&mut all, &self.times);
        all
    }

    /// Ends `step`, and returns its line. So far, `num_tokens` tokens were processed and
    /// `num_completions` completions sampled.
    pub fn line(&mut self, step: u64, num_tokens: u64, num_completions: u64) -> Line {
        let mut own = std::mem::take(&mut self.step);
        add(&mut own, "num_tokens".to_owned(), num_tokens as f64);
        add(
            &mut own,
            "num_completions".to_owned(),
            num_completions as f64,
        );
        if step > 0 {
            let time = self.last_line.elapsed().as_secs_f64();
            add(&mut own, "step_time".to_owned(), time);
            self.last_line = Instant::now();
        }
        let times = std::mem::take(&mut self.times);
        for (stage, time) in &times {
            add(&mut own, format!("timing_s/{stage}"), time.as_secs_f64());
        }
        add_times(&mut self.earlier_times, &times);
        let values = self
            .rollout
            .iter()
            .chain(&own)
            .map(|(name, sum)| (name.clone(), sum.mean()));
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
        RolloutRecord {
            lengths: vec![1],
            truncated: vec![0],
            group_size: 1,
            rewards,
            recorded: Recorded {
                numbers,
                arrays: Vec::new(),
                times,
            },
            ..RolloutRecord::default()
        }
    }

    #[test]
    fn every_step_of_a_rollout_has_its_values_and_the_first_its_time() {
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
    fn refuses_a_second_owner_of_a_name() {
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
