//! Wall-clock time of each stage.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::model::Policy;

/// Times by stage.
#[derive(Debug, Clone, Default)]
pub struct Times(pub BTreeMap<&'static str, Duration>);

impl Times {
    /// Adds `time` to the time of `stage`.
    pub fn add(&mut self, stage: &'static str, time: Duration) {
        *self.0.entry(stage).or_default() += time;
    }

    /// Adds all `times`.
    pub fn extend(&mut self, times: &Self) {
        times.0.iter().for_each(|(stage, time)| self.add(stage, *time));
    }

    /// Runs `work` as a part of `stage`, up to the end of the device's work, which would otherwise count in the next stage.
    pub fn of<T>(&mut self, stage: &'static str, policy: &Policy, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let result = work()?;
        policy.device().synchronize()?;
        self.add(stage, started.elapsed());
        Ok(result)
    }
}
