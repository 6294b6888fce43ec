//! Warnings during a run: checks of its newest metrics, each reported once.

mod advice;
mod checks;
mod setup;
mod window;

use std::collections::{BTreeMap, BTreeSet};

pub use advice::{Advice, Way};
pub use checks::Finding;
pub use setup::Setup;

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
        let advice = advice::tighten(&self.setup, "mask", idle.first()?).text;
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

    fn watch(settings: &[(&str, &str)]) -> Watch {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Watch::new(Setup::of(&settings, Vec::new()))
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
    fn steps_rejected_whole_are_told_once() {
        let mut watch = watch(&[("warnings.rejection_rate", "0")]);
        let before = [(0.5, 0.5), (0.1, 0.9), (0.1, 0.8), (0.2, 0.8), (0.0, 1.0)];
        assert!(told(&mut watch, before.map(|(a, b)| rejected(a, b))).is_empty());
        let [finding] = watch.step(6, &rejected(0.4, 0.6)).try_into().unwrap();
        assert!(finding.what.contains(", most by `b.mask`,"), "{}", finding.what);
        assert!(watch.step(7, &rejected(0.4, 0.6)).is_empty());
    }

    /// Its user named the share, and the advice to raise the threshold would be refused beside it.
    #[test]
    fn a_mask_or_weight_that_finds_its_threshold_is_left_alone() {
        let step = |threshold: f64| {
            let mask = [("a.mask/rejection_rate", 0.3), ("a.mask/threshold", threshold)];
            let weight = [
                ("a.weight/weighted_away_gradient_share", 0.9),
                ("a.weight/mean", 0.1),
                ("a.weight/threshold", threshold),
            ];
            values(&[&mask[..], &weight].concat())
        };
        let told = |threshold: f64| told(&mut watch(&[]), (0..20).map(|_| step(threshold)));
        assert_eq!(
            (told(f64::NAN), told(1e-4)),
            (vec!["5 mask_rejects_much".into(), "20 weights_small".into()], vec![])
        );
    }

    #[test]
    fn a_share_that_finds_itself_can_rise_with_the_rate_alone() {
        let step = |found: f64| values(&[("a.control/applied", 1.0), ("a.control/share", found)]);
        let advice = |found: f64| {
            let mut watch = watch(&[("warnings.idle_control_steps", "1"), ("train.learning_rate", "1e-4")]);
            let [finding] = watch.step(1, &step(found)).try_into().unwrap();
            finding.advice.into_iter().map(|advice| advice.way).collect::<Vec<_>>()
        };
        assert_eq!([advice(1.0), advice(f64::NAN)], [vec![Way::RaiseRate], vec![Way::Keys]]);
    }

    #[test]
    fn a_summary_names_masks_that_never_rejected() {
        let mut watch = watch(&[]);
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
    fn a_fall_is_none_while_it_may_be_noise() {
        let rewards = |before: [f64; 2], now: f64| {
            let rewards = (0..30).map(move |step| if step < 20 { before[step % 2] } else { now });
            rewards.map(|reward| values(&[("reward", reward)]))
        };
        assert_eq!(told(&mut watch(&[]), rewards([0.5, 0.7], 0.2)), ["28 reward_fell"]);
        // The mean falls by the same amount, but the steps differ by more.
        assert!(told(&mut watch(&[]), rewards([0.0, 1.2], 0.2)).is_empty());
        // A tenth of the best is left, which is not below 0.
        assert!(told(&mut watch(&[]), rewards([-0.5, -0.7], -5.0)).is_empty());
    }

    #[test]
    fn a_fall_of_the_held_out_accuracy_is_told_before_ten_steps_have_a_mean() {
        let fallen = |prompts: &str, accuracy: f64| {
            let mut watch = watch(&[("eval.num_prompts", prompts)]);
            assert!(watch.step(0, &values(&[("eval_accuracy", 0.36)])).is_empty());
            let cut = || values(&[("reward", 0.0), ("completions/clipped_ratio", 1.0)]);
            assert!(told(&mut watch, (0..9).map(|_| cut())).is_empty());
            let mut last = cut();
            last.insert("eval_accuracy".to_owned(), accuracy);
            let [finding] = watch.step(10, &last).try_into().unwrap();
            (finding.check, finding.what)
        };
        let (check, what) = fallen("128", 0.01);
        assert_eq!((check, &*what), ("reward_fell", "the held-out accuracy fell from 36.0%, before training, to 1.0%"));
        // A fall by half is asked for, and by more than 20 answers tell.
        assert_eq!((fallen("128", 0.19).0, fallen("20", 0.01).0), ("cut_off", "cut_off"));
    }

    #[test]
    fn a_warm_up_is_no_jump_and_no_idleness() {
        let step =
            |rate: f64, kl: f64| values(&[("learning_rate", rate), ("step/kl", kl), ("a.mask/rejection_rate", 0.0)]);
        let mut watch = watch(&[("train.learning_rate", "1.0")]);
        let rising = (1..=40).map(|number| f64::from(number) / 40.0).map(|rate| step(rate, 0.1 * rate * rate));
        // The mask had a chance from step 20 on.
        assert_eq!(told(&mut watch, rising), ["39 mask_idle"]);
        assert_eq!(told(&mut watch, [step(1.0, 2.9), step(0.5, 0.8), step(1.0, 4.0)]), ["2 kl_jump"]);
        // Many times a tiny value is still small.
        let mut watch = self::watch(&[("train.learning_rate", "1.0")]);
        let small = (0..19).map(|number| step(1.0, if number < 18 { 1e-6 } else { 9e-3 }));
        assert!(told(&mut watch, small).is_empty());
    }

    #[test]
    fn a_line_that_told_is_not_told_again() {
        let untaught = || values(&[("frac_advantage_zero", 1.0), ("reward", 0.0)]);
        let mut before = watch(&[]);
        let lines: Vec<_> = (1..=12)
            .map(|step| {
                let mut line = untaught();
                let found = before.step(step, &line);
                line.extend(found.iter().map(|finding| (finding.metric(), 1.0)));
                line
            })
            .collect();
        for resumed_at in 0..12 {
            let mut after = watch(&[]);
            (1..).zip(&lines[..resumed_at]).for_each(|(step, line)| after.recall(step, line));
            let rest = told(&mut after, lines[resumed_at..].iter().map(|_| untaught()));
            let expected = if resumed_at < 10 { vec![format!("{} no_signal", 10 - resumed_at)] } else { Vec::new() };
            assert_eq!(rest, expected, "resumed after step {resumed_at}");
        }
    }
}
