//! Receives the reports of components, for the step's metrics and the terminal.

use std::collections::BTreeSet;

use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_plugin::{Point, Sink};

use super::names::{self, metric_name};
use crate::metrics::Metrics;

/// The sink of one run.
///
/// A mask's metrics are named `component-id/name`, and a reward's `rewards/component-id/name`. Advantage estimator and objective, one each
/// per run, use the plain `name` (`clip_ratio/region_mean`). A per-token array gives `name/mean` and `name/max` over completion tokens. A
/// name that the host or another component uses is refused.
pub struct StepSink<'a> {
    pub metrics: &'a mut Metrics,
    /// `[B, T]`: 1 for completion tokens. For rewards it is `[B]`, because their arrays have one number per completion.
    pub completion_mask: &'a [u8],
    /// The kind of the component that is being called.
    pub point: Point,
    pub warnings: WarningSink<'a>,
    /// Values that components record for each token, `[B, T]`, by name; `None` if they are not collected.
    pub arrays: Option<Vec<(String, Vec<f32>)>>,
    /// The error about a name in the current call, if any.
    objection: Option<String>,
}

impl<'a> StepSink<'a> {
    /// A sink for calls at `point`.
    pub fn new(
        metrics: &'a mut Metrics,
        completion_mask: &'a [u8],
        point: Point,
        warned: &'a mut BTreeSet<String>,
        watchdog: &'a Watchdog,
    ) -> Self {
        let warnings = WarningSink { warned, watchdog };
        Self { metrics, completion_mask, point, warnings, arrays: None, objection: None }
    }
}

impl Sink for StepSink<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.warnings)
    }

    fn record(&mut self, component: &str, name: &str, value: f64) {
        let recorded = match names::is_reserved(self.point, name) {
            true => Err(names::reserved(name)),
            false => self.metrics.record_of(component, &metric_name(self.point, component, name), value),
        };
        if let Err(sentence) = recorded {
            self.objection.get_or_insert(sentence);
        }
    }

    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        let real = values.iter().zip(self.completion_mask).filter(|(_, mask)| **mask == 1);
        let (mut sum, mut largest, mut count) = (0.0_f64, f64::NEG_INFINITY, 0_u64);
        for value in real.map(|(value, _)| f64::from(*value)) {
            sum += value;
            largest = largest.max(value);
            count += 1;
        }
        if count > 0 {
            let [mean, max] = names::of_tokens(name);
            self.record(component, &mean, sum / count as f64);
            self.record(component, &max, largest);
            if let Some(arrays) = &mut self.arrays {
                arrays.push((metric_name(self.point, component, name), values.to_vec()));
            }
        }
    }

    fn objection(&mut self) -> Option<String> {
        self.objection.take()
    }
}
