//! Collects what components record in a rollout or a step, and how long its stages take.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_plugin::{Point, Sink};
use host_model::Policy;

use super::owners::{Owner, Owners, metric_name, of_tokens, reserved};

/// Wall-clock times by stage.
pub type Times = BTreeMap<&'static str, Duration>;

/// Numbers and arrays that components recorded, by the names of their metrics, and the times of the
/// stages.
///
/// A mask's metrics are named `component-id/name`, and a reward's `rewards/component-id/name`.
/// Advantage estimator and objective, one each per run, use the plain `name`
/// (`clip_ratio/region_mean`). A per-token array gives `name/mean` and `name/max` over completion
/// tokens.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// Numbers in the order of the calls; several of one name are averaged.
    pub numbers: Vec<(String, f64)>,
    /// Values of each token, `[B, T]`; empty if they are not collected.
    pub arrays: Vec<(String, Vec<f32>)>,
    /// Time of each stage.
    pub times: Times,
}

/// Receives the reports of all components of a rollout or a step. A name that the host or another
/// component uses is refused.
pub struct Recorder<'a> {
    pub recorded: Recorded,
    /// True to collect arrays.
    pub collects_arrays: bool,
    /// `[B, T]`: 1 for completion tokens. For rewards it is `[B]`, because their arrays have one
    /// number per completion.
    completion_mask: Vec<u8>,
    owners: &'a mut Owners,
    warnings: WarningSink<'a>,
}

impl<'a> Recorder<'a> {
    pub fn new(
        completion_mask: Vec<u8>,
        owners: &'a mut Owners,
        warned: &'a mut BTreeSet<String>,
        watchdog: &'a Watchdog,
    ) -> Self {
        Self {
            recorded: Recorded::default(),
            collects_arrays: false,
            completion_mask,
            owners,
            warnings: WarningSink { warned, watchdog },
        }
    }

    /// Runs `work` as `stage`, up to the end of the device's work, which would otherwise count in
    /// the next stage.
    pub fn timed<T>(
        &mut self,
        stage: &'static str,
        policy: &Policy,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let started = Instant::now();
        let result = work()?;
        policy.device().synchronize()?;
        self.add_time(stage, started);
        Ok(result)
    }

    fn add_time(&mut self, stage: &'static str, since: Instant) {
        *self.recorded.times.entry(stage).or_default() += since.elapsed();
    }

    /// The sink for components at `point`. Until it is dropped, time counts for their stage.
    pub fn at(&mut self, point: Point) -> ComponentSink<'_, 'a> {
        ComponentSink {
            recorder: self,
            point,
            objection: None,
            is_silent: false,
            started: Instant::now(),
        }
    }

    /// The sink for further calls of components at `point` whose numbers of this batch are already
    /// recorded: it records none.
    pub fn silent_at(&mut self, point: Point) -> ComponentSink<'_, 'a> {
        let mut sink = self.at(point);
        sink.is_silent = true;
        sink
    }
}

/// The sink for the components of one kind.
pub struct ComponentSink<'r, 'a> {
    recorder: &'r mut Recorder<'a>,
    point: Point,
    /// The error about a name in the current call, if any.
    objection: Option<String>,
    is_silent: bool,
    started: Instant,
}

impl Drop for ComponentSink<'_, '_> {
    fn drop(&mut self) {
        let stage = match self.point {
            // Their time is a part of the rollout's.
            Point::Environment | Point::Reward => return,
            Point::Advantage => "advantage",
            Point::Objective => "objective",
            Point::Mask | Point::Weight => "mask",
            Point::StepControl => "step_control",
        };
        self.recorder.add_time(stage, self.started);
    }
}

impl Sink for ComponentSink<'_, '_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.recorder.warnings)
    }

    fn record(&mut self, component: &str, name: &str, value: f64) {
        if self.is_silent {
            return;
        }
        let metric = metric_name(self.point, component, name);
        match self
            .recorder
            .owners
            .claim(&metric, Owner::Component(component.to_owned()))
        {
            Ok(()) => self.recorder.recorded.numbers.push((metric, value)),
            Err(Owner::Host) => drop(self.objection.get_or_insert(reserved(name))),
            Err(Owner::Component(other)) => {
                let sentence = format!(
                    "recorded `{metric}`, as component `{other}` does (rename one of them)"
                );
                self.objection.get_or_insert(sentence);
            }
        }
    }

    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        let real = values
            .iter()
            .zip(&self.recorder.completion_mask)
            .filter(|(_, mask)| **mask == 1);
        let mut sum = 0.0_f64;
        let mut largest = f64::NEG_INFINITY;
        let mut count = 0_u64;
        for value in real.map(|(value, _)| f64::from(*value)) {
            sum += value;
            largest = largest.max(value);
            count += 1;
        }
        if count > 0 {
            let [mean, max] = of_tokens(name);
            self.record(component, &mean, sum / count as f64);
            self.record(component, &max, largest);
            if self.recorder.collects_arrays && !self.is_silent {
                self.recorder
                    .recorded
                    .arrays
                    .push((metric_name(self.point, component, name), values.to_vec()));
            }
        }
    }

    fn objection(&mut self) -> Option<String> {
        self.objection.take()
    }
}
