//! Warnings during a run: checks of its newest metrics. Each finding is reported once.

mod advice;
mod checks;
mod setup;
mod window;

use std::collections::{BTreeMap, BTreeSet};

pub use advice::{Advice, Way};
pub use checks::{Finding, Severity};
pub use setup::{Settings, Setup};

use checks::CHECKS;
use window::Window;

use crate::metrics::names::REJECTION_RATE;

/// Checks each step of a run.
#[derive(Debug)]
pub struct Watch {
    setup: Setup,
    window: Window,
    /// The findings that were reported, by the names of their metrics.
    reported: BTreeSet<String>,
}

impl Watch {
    /// A watch for a run before its first step.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            window: Window::default(),
            reported: BTreeSet::new(),
        }
    }

    /// Adds a step's metrics; returns the findings after it, the most serious first. Step 0 is the
    /// measurement before training.
    pub fn look(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Vec<Finding> {
        self.window
            .push(step, values, self.setup.learning_rate().unwrap_or(0.0));
        checks::find(&self.window, &self.setup)
    }

    /// Adds a step's metrics; returns the findings after it that were never reported.
    pub fn step(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Vec<Finding> {
        let mut found = self.look(step, values);
        found.retain(|finding| self.reported.insert(finding.metric()));
        found
    }

    /// Adds the metrics of a step before a resume. They name the findings that were reported then.
    pub fn recall(&mut self, step: u64, values: &BTreeMap<String, f64>) {
        self.window
            .push(step, values, self.setup.learning_rate().unwrap_or(0.0));
        let findings = values.keys().filter(|name| name.starts_with("warnings/"));
        self.reported.extend(findings.cloned());
    }

    /// A line for a run's summary, if no step had a learning signal, or if masks never rejected a
    /// token.
    pub fn closing(&self) -> Option<String> {
        let Window {
            count, with_signal, ..
        } = &self.window;
        if *with_signal == 0 && *count > 0 {
            let advice = advice::answers(&self.setup)
                .map_or_else(String::new, |advice| format!(" ({})", advice.text));
            return Some(format!(
                "no signal          the completions of each prompt earned alike in all {count} \
                 steps, so that nothing was learned from rewards{advice}"
            ));
        }
        let idle: Vec<String> = self
            .window
            .idle(REJECTION_RATE)
            .into_iter()
            .map(|(mask, _)| mask)
            .collect();
        let advice = advice::tighten(&self.setup, "mask", idle.first()?)?.text;
        Some(format!(
            "never rejected     {}: no token in {with_signal} steps ({advice})",
            idle.join(", ")
        ))
    }
}

/// Rank of a check among all, with the most serious first.
pub fn rank(check: &str) -> usize {
    CHECKS
        .iter()
        .position(|known| known.name == check)
        .unwrap_or(CHECKS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(settings: &str) -> Watch {
        Watch::new(Setup::of(toml::from_str(settings).unwrap(), Vec::new()))
    }

    fn values(numbers: &[(&str, f64)]) -> BTreeMap<String, f64> {
        numbers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    /// Warnings about steps with these metrics, as `STEP CHECK`.
    fn told(
        watch: &mut Watch,
        steps: impl IntoIterator<Item = BTreeMap<String, f64>>,
    ) -> Vec<String> {
        let step = |(number, values): (u64, BTreeMap<String, f64>)| {
            let found = watch.step(number, &values).into_iter();
            found
                .map(|finding| format!("{number} {}", finding.check))
                .collect::<Vec<_>>()
        };
        (1..).zip(steps).flat_map(step).collect()
    }

    /// Metrics of a step: the share that each of two masks rejected.
    fn rejected(a: f64, b: f64) -> BTreeMap<String, f64> {
        let rates = [
            ("mask/rejection_rate", a + b),
            ("a.mask/rejection_rate", a),
            ("b.mask/rejection_rate", b),
        ];
        values(&rates)
    }

    #[test]
    fn the_summary_names_masks_that_never_rejected() {
        let mut watch = watch("");
        assert_eq!(watch.closing(), None, "no step, no verdict");
        let untaught = || values(&[("frac_advantage_zero", 1.0), ("a.mask/rejection_rate", 0.0)]);
        assert!(told(&mut watch, [untaught(), untaught()]).is_empty());
        assert!(watch.closing().unwrap().starts_with("no signal          "));
        (3..7).for_each(|step| drop(watch.step(step, &rejected(0.0, 0.25))));
        assert!(
            watch
                .closing()
                .unwrap()
                .contains(" a.mask: no token in 4 steps")
        );
        drop(watch.step(7, &rejected(0.1, 0.25)));
        assert_eq!(watch.closing(), None);
    }

    #[test]
    fn a_warm_up_is_neither_a_jump_nor_idle() {
        let step = |rate: f64, kl: f64| {
            values(&[
                ("learning_rate", rate),
                ("step/kl", kl),
                ("a.mask/rejection_rate", 0.0),
            ])
        };
        let mut watch = watch("train.learning_rate = 1.0");
        let rising = (1..=40)
            .map(|number| f64::from(number) / 40.0)
            .map(|rate| step(rate, 0.1 * rate * rate));
        // The mask had a chance from step 20 on.
        assert_eq!(told(&mut watch, rising), ["39 mask_idle"]);
        assert_eq!(
            told(&mut watch, [step(1.0, 2.9), step(0.5, 0.8), step(1.0, 4.0)]),
            ["2 kl_jump"]
        );
        // Many times a tiny value is still small.
        let mut watch = self::watch("train.learning_rate = 1.0");
        let small = (0..19).map(|number| step(1.0, if number < 18 { 1e-6 } else { 9e-3 }));
        assert!(told(&mut watch, small).is_empty());
    }

    #[test]
    fn warns_of_worse_held_out_answers_in_a_run_of_any_length() {
        let accuracies = |settings: &str, shares: &[f64]| {
            let mut watch = watch(settings);
            let steps = (0..)
                .zip(shares)
                .flat_map(|(step, share)| watch.step(step, &values(&[("eval_accuracy", *share)])));
            steps
                .map(|finding| format!("{}: {}", finding.check, finding.what))
                .collect::<Vec<_>>()
        };
        let prompts = "eval.num_prompts = 512";
        let fell =
            "held_out_fell: the held-out accuracy fell from 55.7%, before training, to 38.7%";
        assert_eq!(accuracies(prompts, &[0.557, 0.387]), [fell]);
        let later = "held_out_fell: the held-out accuracy fell from 94.9%, after step 1, to 70.0%";
        assert_eq!(accuracies(prompts, &[0.557, 0.949, 0.7]), [later]);
        let collapsed =
            "reward_fell: the held-out accuracy fell from 55.7%, before training, to 3.0%";
        assert_eq!(accuracies(prompts, &[0.557, 0.03]), [collapsed]);
        assert!(
            accuracies(prompts, &[0.557, 0.5, 0.93, 0.91, 0.94, 0.92]).is_empty(),
            "a healthy run"
        );
        assert!(
            accuracies("eval.num_prompts = 64", &[0.557, 0.387]).is_empty(),
            "chance"
        );
        assert!(
            accuracies(
                &format!("{prompts}\nwarnings.held_out_fall = 0"),
                &[0.557, 0.387]
            )
            .is_empty()
        );
    }

    #[test]
    fn watches_the_held_out_reward_without_an_accuracy() {
        let rewards = |deviation: f64, means: &[f64]| {
            let mut watch = watch("eval.num_prompts = 100");
            let steps = (0..).zip(means).flat_map(|(step, mean)| {
                watch.step(
                    step,
                    &values(&[("eval_reward", *mean), ("reward_std", deviation)]),
                )
            });
            steps
                .map(|finding| format!("{}: {}", finding.check, finding.what))
                .collect::<Vec<_>>()
        };
        let fell = "held_out_fell: the held-out reward fell from 0.600, after step 1, to 0.400";
        assert_eq!(rewards(0.3, &[0.5, 0.6, 0.4]), [fell]);
        let below_0 =
            "held_out_fell: the held-out reward fell from -0.200, before training, to -0.290";
        assert_eq!(rewards(0.1, &[-0.2, -0.29]), [below_0]);
        assert!(rewards(0.5, &[0.5, 0.6, 0.4]).is_empty(), "chance");
    }

    #[test]
    fn a_resumed_run_does_not_repeat_warnings() {
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
            (1..)
                .zip(&lines[..resumed_at])
                .for_each(|(step, line)| after.recall(step, line));
            let rest = told(&mut after, lines[resumed_at..].iter().map(|_| untaught()));
            let expected = if resumed_at < 10 {
                vec![format!("{} no_signal", 10 - resumed_at)]
            } else {
                Vec::new()
            };
            assert_eq!(rest, expected, "resumed after step {resumed_at}");
        }
    }
}
