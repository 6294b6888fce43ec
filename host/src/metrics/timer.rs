//! Wall-clock time of each stage.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Times = BTreeMap<&'static str, Duration>;

/// Times per stage, of the current step and of all previous steps.
#[derive(Debug, Default)]
pub(super) struct Timers {
    step: Arc<Mutex<Times>>,
    finished: Times,
}

/// On drop, adds the time since its creation to its stage.
#[derive(Debug)]
pub struct Timer {
    stage: &'static str,
    started: Instant,
    times: Arc<Mutex<Times>>,
}

impl Timers {
    pub(super) fn start(&self, stage: &'static str) -> Timer {
        Timer { stage, started: Instant::now(), times: Arc::clone(&self.step) }
    }

    /// Returns the times of the step that ends now, and adds them to the totals.
    pub(super) fn take_step(&mut self) -> Times {
        let step = std::mem::take(&mut *lock(&self.step));
        for (stage, time) in &step {
            *self.finished.entry(stage).or_default() += *time;
        }
        step
    }

    pub(super) fn totals(&self) -> Times {
        let mut totals = self.finished.clone();
        for (stage, time) in lock(&self.step).iter() {
            *totals.entry(stage).or_default() += *time;
        }
        totals
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        *lock(&self.times).entry(self.stage).or_default() += self.started.elapsed();
    }
}

/// Locks `times`, poisoned or not: a panic cannot leave a sum of durations incomplete.
fn lock(times: &Mutex<Times>) -> MutexGuard<'_, Times> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}
