//! The newest steps of a run, and statistics of earlier steps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::WarningsConfig;
use crate::metrics::names::{APPLIED, REJECTION_RATE, ZERO_ADVANTAGE};

/// Number of steps over which a reward is averaged.
pub(super) const REWARDS: usize = 10;

/// The newest steps of a run, and statistics of earlier steps.
#[derive(Debug, Default)]
pub struct Window {
    /// Finite metrics of the newest steps, by name.
    steps: VecDeque<BTreeMap<String, f64>>,
    /// Number of steps so far, then number of steps in which some advantage was not 0.
    pub(super) count: u64,
    pub(super) with_signal: u64,
    /// Reward of the first step.
    pub(super) first: Option<f64>,
    /// Best mean reward so far.
    pub(super) best: Option<Level>,
    /// What the held-out measurements are.
    pub(super) held_out_metric: HeldOut,
    /// Best held-out measurement so far, and the newest.
    pub(super) held_out: Option<[Measured; 2]>,
    /// Largest standard deviation of a step's rewards.
    pub(super) reward_deviation: f64,
    /// Number of steps in which a mask or a step control could have acted, by its metric.
    chances: BTreeMap<String, u64>,
    /// Metrics among these that ever showed an effect.
    acted: BTreeSet<String>,
}

/// A mean reward with its error.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    /// Mean over [`REWARDS`] steps.
    pub(super) mean: f64,
    /// Standard error of the mean.
    pub(super) error: f64,
    /// Last of these steps, counted from 1.
    pub(super) step: u64,
}

/// What is measured on held-out prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum HeldOut {
    /// Mean reward; in runs in which no reward decides what is right.
    #[default]
    Reward,
    /// Share of right answers.
    Accuracy,
}

/// A held-out measurement after a step, or before training after step 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) value: f64,
    pub(super) step: u64,
}

impl Window {
    /// Adds the metrics of a step; `rate` is the peak learning rate of the schedule. Step 0 is the
    /// measurement before training.
    pub(super) fn push(&mut self, step: u64, values: &BTreeMap<String, f64>, rate: f64) {
        self.measure(step, values);
        if step == 0 {
            return;
        }
        let finite = values.iter().filter(|(_, value)| value.is_finite());
        self.steps
            .push_back(finite.map(|(name, value)| (name.clone(), *value)).collect());
        if self.steps.len() > WarningsConfig::MOST_STEPS {
            self.steps.pop_front();
        }
        self.count += 1;
        self.first = self.first.or_else(|| self.now("reward"));
        self.reward_deviation = self
            .reward_deviation
            .max(self.now("reward_std").unwrap_or(0.0));
        let signal = self.now(ZERO_ADVANTAGE).is_none_or(|share| share < 1.0);
        self.with_signal += u64::from(signal);
        // A mask that rejects tokens which move the policy too far has less to reject at a low
        // learning rate.
        let chance = signal
            && self
                .now("learning_rate")
                .is_none_or(|now| now >= rate / 2.0);
        for (last, of_none) in [(REJECTION_RATE, 0.0), (APPLIED, 1.0)] {
            for component in self.components(last) {
                let name = format!("{component}/{last}");
                if self.now(&name) != Some(of_none) {
                    self.acted.insert(name.clone());
                }
                *self.chances.entry(name).or_default() += u64::from(chance);
            }
        }
        if let Some(level) = self.level()
            && self.best.is_none_or(|best| level.mean > best.mean)
        {
            self.best = Some(level);
        }
    }

    /// Takes a held-out accuracy; a reward only of a run that has no accuracy.
    fn measure(&mut self, step: u64, values: &BTreeMap<String, f64>) {
        let finite = |name: &str| values.get(name).copied().filter(|value| value.is_finite());
        let (metric, value) = match (finite("eval_accuracy"), finite("eval_reward")) {
            (Some(accuracy), _) => (HeldOut::Accuracy, accuracy),
            (None, Some(reward)) if self.held_out_metric == HeldOut::Reward => {
                (HeldOut::Reward, reward)
            }
            _ => return,
        };
        let now = Measured { value, step };
        let before = self.held_out.filter(|_| self.held_out_metric == metric);
        let best = before.map_or(now, |[best, _]| if value > best.value { now } else { best });
        self.held_out_metric = metric;
        self.held_out = Some([best, now]);
    }

    /// Value of `name` in the newest step; `None` if the step lacks it.
    pub(super) fn now(&self, name: &str) -> Option<f64> {
        self.steps.back()?.get(name).copied()
    }

    /// The newest `count` values of `name`, over the steps that have it; `None` if there are fewer.
    pub(super) fn last(&self, name: &str, count: usize) -> Option<Vec<f64>> {
        let of = |step: &BTreeMap<String, f64>| step.get(name).copied();
        let values: Vec<f64> = self.steps.iter().rev().filter_map(of).take(count).collect();
        (values.len() == count).then_some(values)
    }

    pub(super) fn mean(&self, name: &str, count: usize) -> Option<f64> {
        self.last(name, count).map(|values| mean(&values))
    }

    /// The values of two metrics in the steps that have both, oldest first.
    pub(super) fn pairs(&self, first: &str, second: &str) -> Vec<(f64, f64)> {
        self.steps
            .iter()
            .filter_map(|step| Some((*step.get(first)?, *step.get(second)?)))
            .collect()
    }

    /// Mean reward of the newest steps.
    pub(super) fn level(&self) -> Option<Level> {
        let rewards = self.last("reward", REWARDS)?;
        let mean = mean(&rewards);
        // Computed from differences between neighbours, so that a fall does not count as noise.
        let squares: f64 = rewards
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).powi(2))
            .sum();
        let error = (squares / (2 * (REWARDS - 1) * REWARDS) as f64).sqrt();
        Some(Level {
            mean,
            error,
            step: self.count,
        })
    }

    /// The components with a metric `ID/last` in the newest step.
    pub(super) fn components(&self, last: &str) -> Vec<String> {
        let id = |name: &String| {
            name.strip_suffix(last)?
                .strip_suffix('/')
                .map(str::to_owned)
        };
        // These two metrics are totals over all masks and over all step controls.
        let own = |id: &String| !["mask", "step_control"].contains(&id.as_str());
        self.steps.back().map_or_else(Vec::new, |step| {
            step.keys().filter_map(id).filter(own).collect()
        })
    }

    /// Components whose metric `ID/last` never showed an effect, with the number of steps in which
    /// they could have acted.
    pub(super) fn idle(&self, last: &str) -> Vec<(String, u64)> {
        let idle = |component: String| {
            let name = format!("{component}/{last}");
            let chances = self
                .chances
                .get(&name)
                .filter(|_| !self.acted.contains(&name));
            chances.map(|chances| (component, *chances))
        };
        self.components(last).into_iter().filter_map(idle).collect()
    }
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
