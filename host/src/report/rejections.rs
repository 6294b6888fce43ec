//! Rejections by masks over the steps of this process: whether they reject every token, or never any.

use std::collections::BTreeMap;

use crate::metrics::names::{REJECTION_RATE, metric_name};
use capo_plugin::Point;

/// Steps in a row of which no token is left, before it is said.
const IN_A_ROW: u64 = 3;

/// The masks' rejections so far.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// Each mask, and the steps in which it rejected something.
    masks: Vec<(String, u64)>,
    steps: u64,
    /// Of those, the ones in which some advantage was not 0: without one a mask has nothing to act on.
    with_signal: u64,
    /// Steps in a row of which no token is left.
    whole: u64,
    told: bool,
}

impl Rejections {
    /// Of these masks, by their names in reports.
    pub(super) fn of<'a>(masks: impl Iterator<Item = &'a str>) -> Self {
        Self { masks: masks.map(|mask| (mask.to_owned(), 0)).collect(), ..Self::default() }
    }

    /// Takes in a step's numbers, and whether it had a signal; a sentence where several steps in a row were rejected whole, once.
    pub(super) fn step(&mut self, values: &BTreeMap<String, f64>, signal: bool) -> Option<String> {
        let rate = |mask: &str| values.get(&metric_name(Point::Mask, mask, REJECTION_RATE)).copied().unwrap_or(0.0);
        self.steps += 1;
        self.with_signal += u64::from(signal);
        self.masks.iter_mut().for_each(|(mask, steps)| *steps += u64::from(rate(mask) > 0.0));
        self.whole = if rate("mask") >= 1.0 { self.whole + 1 } else { 0 };
        if self.told || self.whole < IN_A_ROW {
            return None;
        }
        self.told = true;
        let (most, _) = self.masks.iter().max_by(|(a, _), (b, _)| rate(a).total_cmp(&rate(b)))?;
        Some(format!(
            "every token was rejected in the last {IN_A_ROW} steps, so that nothing is learned (loosen `{most}`, which rejected most)"
        ))
    }

    /// A line about steps that had nothing to learn from, or about masks that never rejected a token.
    pub(super) fn closing(&self) -> Option<String> {
        if self.with_signal == 0 && self.steps > 0 {
            return Some(format!(
                "no signal          the completions of each prompt earned alike in all {} steps, so that nothing was learned from rewards (easier or harder prompts, more `rollout.num_generations`)",
                self.steps
            ));
        }
        let idle: Vec<&str> =
            self.masks.iter().filter(|(_, steps)| *steps == 0).map(|(mask, _)| mask.as_str()).collect();
        let (names, steps) = (idle.join(", "), self.with_signal);
        (!idle.is_empty() && steps > 0).then(|| {
            format!("never rejected     {names}: no token in {steps} steps (`host replay --sweep` tries other limits)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step's numbers: the share that each of two masks rejected.
    fn values(a: f64, b: f64) -> BTreeMap<String, f64> {
        [("mask", a + b), ("a.mask", a), ("b.mask", b)].map(|(id, rate)| (format!("{id}/rejection_rate"), rate)).into()
    }

    #[test]
    fn steps_rejected_whole_are_told_once() {
        let mut rejections = Rejections::of(["a.mask", "b.mask"].into_iter());
        let mut told = |a, b| rejections.step(&values(a, b), true).is_some();
        assert_eq!([told(0.5, 0.5), told(0.1, 0.9), told(0.1, 0.8), told(0.2, 0.8), told(0.0, 1.0)], [false; 5]);
        let sentence = rejections.step(&values(0.4, 0.6), true).unwrap();
        assert!(sentence.starts_with("every token was rejected in the last 3 steps"), "{sentence}");
        assert!(sentence.ends_with("(loosen `b.mask`, which rejected most)"), "{sentence}");
        assert_eq!(rejections.step(&values(0.4, 0.6), true), None);
    }

    #[test]
    fn masks_that_never_reject_are_named_at_the_end() {
        let mut rejections = Rejections::of(["a.mask", "b.mask"].into_iter());
        assert_eq!(rejections.closing(), None, "no step, no verdict");
        for _ in 0..4 {
            rejections.step(&values(0.0, 0.25), true);
        }
        rejections.step(&values(0.0, 0.0), false);
        assert!(rejections.closing().unwrap().contains(" a.mask: no token in 4 steps"));
        rejections.step(&values(0.1, 0.25), true);
        assert_eq!(rejections.closing(), None);
        assert_eq!(Rejections::of(std::iter::empty()).closing(), None);
    }

    #[test]
    fn a_run_without_a_signal_is_not_the_masks_fault() {
        let mut rejections = Rejections::of(["a.mask"].into_iter());
        (0..3).for_each(|_| drop(rejections.step(&values(0.0, 0.0), false)));
        let line = rejections.closing().unwrap();
        assert!(line.starts_with("no signal          ") && line.contains(" in all 3 steps"), "{line}");
        assert!(!line.contains("a.mask"), "{line}");
    }
}
