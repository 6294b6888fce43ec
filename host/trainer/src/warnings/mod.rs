//! Warnings during a run: checks of its newest metrics, each reported once.

mod advice;
mod checks;
mod setup;
mod window;

use std::collections::{BTreeMap, BTreeSet};

pub use advice::{Advice, Way};
pub use checks::Finding;
pub use setup::{Settings, Setup};

use checks::CHECKS;
use window::Window;

use crate::metrics::names::REJECTION_RATE;

/// Checks each step of a run.
#[derive(Debug)]
pub struct Watch {
    setup: Setup,
    window: Window,
    /// Findings that were reported, by their metrics.
    told: BTreeSet<String>,
}

impl Watch {
    /// A watch for a run before its first step.
    pub fn new(setup: Setup) -> Self {
        Self { setup, window: Window::default(), told: BTreeSet::new() }
    }

    /// Adds a step's metrics; returns the findings after it, the most serious first. Step 0 is the measurement before training.
    pub fn look(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Vec<Finding> {
        self.window.push(step, values, self.setup.learning_rate().unwrap_or(0.0));
        checks::find(&self.window, &self.setup)
    }

    /// Adds a step's metrics; returns the findings after it that were never reported.
    pub fn step(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Vec<Finding> {
        let mut found = self.look(step, values);
        found.retain(|finding| self.told.insert(finding.metric()));
        found
    }

    /// Adds the metrics of a step before a resume; they include the warnings that were reported.
    pub fn recall(&mut self, step: u64, values: &BTreeMap<String, f64>) {
        self.window.push(step, values, self.setup.learning_rate().unwrap_or(0.0));
        self.told.extend(values.keys().filter(|name| name.starts_with("warnings/")).cloned());
    }

    /// A line for a run's summary, about steps without a learning signal, or masks that never rejected a token.
    pub fn closing(&self) -> Option<String> {
        let Window { count, with_signal, .. } = &self.window;
        if *with_signal == 0 && *count > 0 {
            let advice = advice::answers(&self.setup).map_or_else(String::new, |advice| format!(" ({})", advice.text));
            return Some(format!(
                "no signal          the completions of each prompt earned alike in all {count} steps, so that nothing was learned from rewards{advice}"
            ));
        }
        let idle: Vec<String> = self.window.idle(REJECTION_RATE).into_iter().map(|(mask, _)| mask).collect();
        let advice = advice::tighten(&self.setup, "mask", idle.first()?)?.text;
        Some(format!("never rejected     {}: no token in {with_signal} steps ({advice})", idle.join(", ")))
    }
}

/// Rank of a check among all, with the most serious first.
pub fn rank(check: &str) -> usize {
    CHECKS.iter().position(|known| known.name == check).unwrap_or(CHECKS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(settings: &str) -> Watch {
        Watch::new(Setup::of(toml::from_str(settings).unwrap(), Vec::new()))
    }

    fn values(numbers: &[(&str, f64)]) -> BTreeMap<String, f64> {
        numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    /// Warnings about steps with these metrics, as `STEP CHECK`.
    fn told(watch: &mut Watch, steps: impl IntoIterator<Item = BTreeMap<String, f64>>) -> Vec<String> {
        let step = |(number, values): (u64, BTreeMap<String, f64>)| {
            let found = watch.step(number, &values).into_iter();
            found.map(|finding| format!("{number} {}", finding.check)).collect::<Vec<_>>()
        };
        (1..).zip(steps).flat_map(step).collect()
    }

    /// Metrics of a step: the share that each of two masks rejected.
    fn rejected(a: f64, b: f64) -> BTreeMap<String, f64> {
        let rates = [("mask/rejection_rate", a + b), ("a.mask/rejection_rate", a), ("b.mask/rejection_rate", b)];
        values(&rates)
    }

    #[test]
    fn a_summary_names_masks_that_never_rejected() {
        let mut watch = watch("");
        assert_eq!(watch.closing(), None, "no step, no verdict");
        let untaught = || values(&[("frac_advantage_zero", 1.0), ("a.mask/rejection_rate", 0.0)]);
        assert!(told(&mut watch, [untaught(), untaught()]).is_empty());
        assert!(watch.closing().unwrap().starts_with("no signal          "));
        (3..7).for_each(|step| drop(watch.step(step, &rejected(0.0, 0.25))));
        assert!(watch.closing().unwrap().contains(" a.mask: no token in 4 steps"));
        drop(watch.step(7, &rejected(0.1, 0.25)));
        assert_eq!(watch.closing(), None);
    }

    #[test]
    fn a_warm_up_is_no_jump_and_no_idleness() {
        let step =
            |rate: f64, kl: f64| values(&[("learning_rate", rate), ("step/kl", kl), ("a.mask/rejection_rate", 0.0)]);
        let mut watch = watch("train.learning_rate = 1.0");
        let rising = (1..=40).map(|number| f64::from(number) / 40.0).map(|rate| step(rate, 0.1 * rate * rate));
        // The mask had a chance from step 20 on.
        assert_eq!(told(&mut watch, rising), ["39 mask_idle"]);
        assert_eq!(told(&mut watch, [step(1.0, 2.9), step(0.5, 0.8), step(1.0, 4.0)]), ["2 kl_jump"]);
        // Many times a tiny value is still small.
        let mut watch = self::watch("train.learning_rate = 1.0");
        let small = (0..19).map(|number| step(1.0, if number < 18 { 1e-6 } else { 9e-3 }));
        assert!(told(&mut watch, small).is_empty());
    }

    #[test]
    fn a_line_that_told_is_not_told_again() {
        let untaught = || values(&[("frac_advantage_zero", 1.0), ("reward", 0.0)]);
        let mut before = watch("");
        let lines: Vec<_> = (1..=12)
            .map(|step| {
                let mut line = untaught();
                let found = before.step(step, &line);
                line.extend(found.iter().map(|finding| (finding.metric(), 1.0)));
                line
            })
            .collect();
        for resumed_at in 0..12 {
            let mut after = watch("");
            (1..).zip(&lines[..resumed_at]).for_each(|(step, line)| after.recall(step, line));
            let rest = told(&mut after, lines[resumed_at..].iter().map(|_| untaught()));
            let expected = if resumed_at < 10 { vec![format!("{} no_signal", 10 - resumed_at)] } else { Vec::new() };
            assert_eq!(rest, expected, "resumed after step {resumed_at}");
        }
    }
}
