//! Where components' reports go: into the step's metrics and onto the terminal.

use std::collections::BTreeSet;

use capo_plugin::Sink;

use crate::metrics::Metrics;
use capo_loader::terminal;
use capo_loader::watchdog::Watchdog;

/// Most sentences of components that one process shows.
const MOST_WARNINGS: usize = 100;

/// The sink of one run.
///
/// A mask's numbers appear as `component-id/name`, a reward's as `rewards/component-id/name`; those of the advantage estimator
/// and the objective, of which a run has one each, as plain `name` (`clip_ratio/region_mean`). Of a per-token array the mean and the largest value over completion
/// tokens appear, as `name/mean` and `name/max`.
pub struct StepSink<'a> {
    /// The step's metrics.
    pub metrics: &'a mut Metrics,
    /// `[B, T]`: 1 for completion tokens. At the reward point `[B]`: an array there has one number per completion.
    pub completion_mask: &'a [u8],
    /// What stands before the component's id in names; none where names carry no id.
    pub prefix: Option<&'static str>,
    /// Sentences already shown.
    pub warned: &'a mut BTreeSet<String>,
    /// Told of every call.
    pub watchdog: &'a Watchdog,
}

impl StepSink<'_> {
    fn name(&self, component: &str, name: &str) -> String {
        self.prefix.map_or_else(|| name.to_owned(), |prefix| format!("{prefix}{component}/{name}"))
    }
}

impl Sink for StepSink<'_> {
    fn record(&mut self, component: &str, name: &str, value: f64) {
        self.metrics.record(&self.name(component, name), value);
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
            let name = self.name(component, name);
            self.metrics.record(&format!("{name}/mean"), sum / count as f64);
            self.metrics.record(&format!("{name}/max"), largest);
        }
    }

    fn warn(&mut self, component: &str, text: &str) {
        warn_once(self.warned, component, text);
    }

    fn enter(&mut self, component: &str, method: &'static str) {
        self.watchdog.enter(component, method);
    }

    fn leave(&mut self) {
        self.watchdog.leave();
    }
}

/// The sink of calls that belong to no step, as of a measurement on held-out prompts: warnings are shown.
pub struct WarningSink<'a> {
    /// Sentences already shown.
    pub warned: &'a mut BTreeSet<String>,
    /// Told of every call.
    pub watchdog: &'a Watchdog,
}

impl Sink for WarningSink<'_> {
    fn record(&mut self, _component: &str, _name: &str, _value: f64) {}

    fn record_tokens(&mut self, _component: &str, _name: &str, _values: &[f32]) {}

    fn warn(&mut self, component: &str, text: &str) {
        warn_once(self.warned, component, text);
    }

    fn enter(&mut self, component: &str, method: &'static str) {
        self.watchdog.enter(component, method);
    }

    fn leave(&mut self) {
        self.watchdog.leave();
    }
}

fn warn_once(warned: &mut BTreeSet<String>, component: &str, text: &str) {
    let sentence = format!("component `{component}`: {text}");
    if warned.len() < MOST_WARNINGS && warned.insert(sentence.clone()) {
        terminal::warn(&sentence);
        if warned.len() == MOST_WARNINGS {
            terminal::warn(&format!("these were {MOST_WARNINGS} different warnings of components; no more are shown"));
        }
    }
}
