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
    /// Number of steps so far.
    pub(super) count: u64,
    /// Number of steps in which some advantage was not 0.
    pub(super) with_signal: u64,
    /// Reward of the first step.
    pub(super) first: Option<f64>,
    /// Best mean reward so far.
    pub(super) best: Option<Level>,
    /// The metric of the held-out measurements.
    pub(super) held_out_metric: HeldOut,
    /// Best held-out measurement so far, and the newest.
    pub(super) held_out: Option<[Measured; 2]>,
    /// Largest standard deviation of a step's rewards.
    pub(super) reward_deviation: f64,
    /// Number of steps in which a mask or a step control could have acted, by the name of the
    /// metric that shows its effect.
    chances: BTreeMap<String, u64>,
    /// Those of these metrics that have shown an effect.
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

/// The metric that is measured on held-out prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum HeldOut {
    /// Mean reward, if no reward of the run decides which answers are right.
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
        for (last, without_effect) in [(REJECTION_RATE, 0.0), (APPLIED, 1.0)] {
            for component in self.components(last) {
                let name = format!("{component}/{last}");
                if self.now(&name) != Some(without_effect) {
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

    /// Takes a held-out accuracy, or a held-out reward if the run has no accuracy.
    fn measure(&mut self, step: u64, values: &BTreeMap<String, f64>) {
        let (metric, value) = if let Some(accuracy) = finite(values, "eval_accuracy") {
            (HeldOut::Accuracy, accuracy)
        } else if let Some(reward) = finite(values, "eval_reward")
            && self.held_out_metric == HeldOut::Reward
        {
            (HeldOut::Reward, reward)
        } else {
            return;
        };
        let now = Measured { value, step };
        let best = match self.held_out {
            Some([best, _]) if self.held_out_metric == metric && value <= best.value => best,
            _ => now,
        };
        self.held_out_metric = metric;
        self.held_out = Some([best, now]);
    }

    /// Value of `name` in the newest step; `None` if the step lacks it.
    pub(super) fn now(&self, name: &str) -> Option<f64> {
        self.steps.back()?.get(name).copied()
    }

    /// The newest `count` values of `name`, over the steps that have it; `None` if there are fewer.
    pub(super) fn last(&self, name: &str, count: usize) -> Option<Vec<f64>> {
        let values: Vec<f64> = self
            .steps
            .iter()
            .rev()
            .filter_map(|step| step.get(name).copied())
            .take(count)
            .collect();
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
        let mut components = Vec::new();
        for name in self.steps.back().into_iter().flat_map(BTreeMap::keys) {
            let id = name
                .strip_suffix(last)
                .and_then(|name| name.strip_suffix('/'));
            // The metrics of these two names are totals over all masks, and over all step controls.
            components.extend(
                id.filter(|id| !["mask", "step_control"].contains(id))
                    .map(str::to_owned),
            );
        }
        components
    }

    /// Components whose metric `ID/last` never showed an effect, with the number of steps in which
    /// they could have acted.
    pub(super) fn idle(&self, last: &str) -> Vec<(String, u64)> {
        let mut idle = Vec::new();
        for component in self.components(last) {
            let name = format!("{component}/{last}");
            if let Some(chances) = self.chances.get(&name)
                && !self.acted.contains(&name)
            {
                idle.push((component, *chances));
            }
        }
        idle
    }
}

fn finite(values: &BTreeMap<String, f64>, name: &str) -> Option<f64> {
    values.get(name).copied().filter(|value| value.is_finite())
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
