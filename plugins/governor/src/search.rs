//! The learning rate that finds itself, as a share of the one that was set.
//!
//! Adam's first step moves each weight by the whole rate, however noisy its gradient is, so that its KL divergence is a measure of the rate. The
//! steps after it tell the same less surely, and make up for a first one that says too much or too little.

use crate::target::scale;

/// So many steps tell the rate, of those that have an advantage and move the policy.
pub(crate) const FIRST: u64 = 6;
/// KL divergence of Adam's first step at a good rate, as a share of the policy's entropy: a policy that is less certain may move further.
const ADAMS_FIRST: f64 = 0.008;
/// The same of the steps after it, which are shorter, because gradients partly cancel in Adam's mean.
const LATER: f64 = 0.003;
/// The entropy is no less than this, nats per completion token: some trainers give no log-probabilities.
const LEAST_ENTROPY: f64 = 0.05;
/// And no more than this: SmolLM2 has one good rate on tasks where it has 1.0, 1.8 and 3.3 nats.
const MOST_ENTROPY: f64 = 1.0;
/// The logarithm of 2: a rate of up to twice the one that was told is taken whole, because it is told that roughly.
const WHOLE: f64 = std::f64::consts::LN_2;
/// A step below this share of a good step's divergence is rounding and moved nothing: nothing was earned yet. It tells nothing.
const STILL: f64 = 1e-6;
/// A first step without an advantage that is shorter, as a share of the rate, had no gradient: weight decay alone moved the weights. Adam's first
/// gradient has 0.3 to 3, and less where masks and weights shorten the first moment and not the second.
const NO_GRADIENT: f64 = 0.1;
/// No step has more than so many times the mean KL divergence of those before it.
const SPIKE: f64 = 10.0;

/// A step that the optimizer proposes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Its KL divergence, and the policy's entropy; nats per completion token.
    pub kl: f64,
    pub entropy: f64,
    pub rate: f64,
    /// How far it moves the weights, as a share of the learning rate (root mean square); it matters for the first step alone, where Adam's is 1.
    pub reach: f64,
    /// Whether a completion of its batch has an advantage. Without one Adam's mean alone moves the policy, less far with each step.
    pub earns: bool,
}

/// The search's state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Search {
    /// The logarithm of the rate that was told, divided by the highest one so far; after the first steps it is above 0 where steps are whole.
    log: f64,
    /// Sum of the KL divergences of what was taken of the steps, and the number of steps that moved the policy.
    kl: f64,
    steps: u64,
    /// Highest learning rate so far, to which the share refers.
    rate: f64,
    /// Whether a batch had an advantage. Some trainers give none, so that their steps tell the rate all the same.
    earned: bool,
}

impl Search {
    /// How much of `step` is taken; its numbers are of the whole step.
    pub(crate) fn take(&mut self, step: Step) -> f64 {
        self.refer_to(step.rate);
        if !step.kl.is_finite() {
            return 0.0;
        }
        self.earned |= step.earns;
        let kl = quadratic(step.kl);
        // `max` drops a number that is none.
        let entropy = step.entropy.max(LEAST_ENTROPY).clamp(LEAST_ENTROPY, MOST_ENTROPY);
        let is_first = self.has_not_begun();
        let has_gradient = step.reach > if step.earns { 0.0 } else { NO_GRADIENT } && step.reach.is_finite();
        if kl < STILL * LATER * entropy || is_first && !has_gradient {
            return self.share();
        }
        let counts = !self.begins() || step.earns || !self.earned;
        if self.begins() && counts {
            let good = if is_first { ADAMS_FIRST * step.reach.powi(2) } else { LATER };
            // The first one counts as much as the others together.
            let count = if is_first { 1 } else { self.steps + FIRST - 1 };
            self.log += (0.5 * (good * entropy / kl).ln() - self.log) / count as f64;
        }
        let share = self.share();
        let taken = share * share * kl;
        let most = if is_first { f64::INFINITY } else { SPIKE * self.kl / self.steps as f64 };
        if counts && taken > 0.0 {
            self.kl += taken.min(most);
            self.steps += 1;
            if self.steps == FIRST && self.log >= -WHOLE {
                self.log += WHOLE;
            }
        }
        share * scale(most, taken)
    }

    /// Whether no step has moved the policy.
    pub(crate) fn has_not_begun(&self) -> bool {
        self.steps == 0
    }

    /// Whether the coming step tells the rate, unless it moves nothing.
    pub(crate) fn begins(&self) -> bool {
        self.steps < FIRST
    }

    /// The share of a step that is no spike.
    pub(crate) fn share(&self) -> f64 {
        let is_whole = self.log >= if self.begins() { -WHOLE } else { 0.0 };
        if is_whole { 1.0 } else { self.log.exp() }
    }

    /// The learning rate that was found, once the first steps are taken.
    pub(crate) fn found(&self) -> Option<f64> {
        (!self.begins()).then(|| self.share() * self.rate)
    }

    /// Keeps `share · rate` where a warm-up raises the rate: the search is for a learning rate.
    fn refer_to(&mut self, rate: f64) {
        if rate <= self.rate {
            return;
        }
        if self.steps > 0 {
            let was_whole = !self.begins() && self.log >= 0.0;
            self.log += (self.rate / rate).ln();
            if was_whole && self.log < 0.0 {
                // It is more than twice what was told now.
                self.log -= WHOLE;
            }
        }
        self.rate = rate;
    }

    /// The state as text.
    pub(crate) fn save(&self) -> String {
        let numbers = [self.log, self.kl, self.rate].map(|number| format!("{:016x}", number.to_bits()));
        format!("{} {} {}", numbers.join(" "), self.steps, self.earned)
    }

    /// The state that `text` holds; `None` for text that `save` did not write.
    pub(crate) fn load(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[log, kl, rate, steps, earned] = words.as_slice() else { return None };
        let number =
            |word: &str| u64::from_str_radix(word, 16).ok().map(f64::from_bits).filter(|number| number.is_finite());
        let [log, kl, rate] = [number(log)?, number(kl)?, number(rate)?];
        Some(Self { log, kl, rate, steps: steps.parse().ok()?, earned: earned.parse().ok()? })
    }
}

/// Divergence that a step of divergence `kl` would have if short and long steps grew alike, with the square of their length. Steps near a nat and
/// above move logits in proportion, so that a part of them has more than the square law says. The factor is of measured steps of 0.1 to
/// 4 nats, which it meets within a factor of four.
fn quadratic(kl: f64) -> f64 {
    kl * (1.0 + kl).powf(1.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The highest rate, to which shares refer, and an entropy.
    const TOP: f64 = 1e-3;
    const ENTROPY: f64 = 0.15;

    fn step(kl: f64) -> Step {
        Step { kl, entropy: ENTROPY, rate: TOP, reach: 1.0, earns: true }
    }

    /// Divergence of a whole step at `times` the rate that it tells: of the first one, or of one after it.
    fn at(times: f64, is_first: bool) -> f64 {
        let square = if is_first { ADAMS_FIRST } else { LATER } * ENTROPY * times * times;
        let (mut low, mut high) = (0.0, square);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if quadratic(middle) < square { low = middle } else { high = middle }
        }
        low
    }

    #[test]
    fn the_first_steps_tell_the_rate_and_it_stays() {
        let mut search = Search::default();
        let told = |kl: f64, good: f64| 0.5 * (good * ENTROPY / quadratic(kl)).ln();
        let (first, later) = (told(0.3, ADAMS_FIRST), [0.1, 0.2, 0.4, 0.3, 0.1]);
        assert!((search.take(step(0.3)) / first.exp() - 1.0).abs() < 1e-12);
        for (place, kl) in later.into_iter().enumerate() {
            assert_eq!(search.found(), None);
            let sum = 5.0 * first + later[..=place].iter().map(|kl| told(*kl, LATER)).sum::<f64>();
            let mean = sum / (6 + place) as f64;
            assert!((search.take(step(kl)) / mean.exp() - 1.0).abs() < 1e-12, "{kl}");
        }
        let share = search.share();
        assert_eq!(search.found(), Some(share * TOP));
        assert_eq!([0.01, 0.2, 0.3].map(|kl| search.take(step(kl))), [share; 3]);
    }

    #[test]
    fn a_rate_that_is_up_to_twice_as_high_is_left_alone() {
        for (times, whole) in [(0.1, true), (1.0, true), (1.9, true), (2.1, false)] {
            let mut search = Search::default();
            for place in 0..2 * FIRST {
                let share = search.take(step(at(times, place == 0)));
                assert_eq!(share == 1.0, whole, "{times}");
                assert!(whole || (share * times - 1.0).abs() < 1e-9);
            }
        }
    }

    /// The first gradient moves a weight by less than the rate where zeros came before it, and tells the same.
    #[test]
    fn a_short_first_step_tells_the_rate_too() {
        let first = |kl: f64, reach: f64| Search::default().take(Step { reach, ..step(kl) });
        assert!((first(at(4.0 * 0.5, true), 0.5) / first(at(4.0, true), 1.0) - 1.0).abs() < 1e-9);
        assert!((first(at(4.0 * 0.05, true), 0.05) / first(at(4.0, true), 1.0) - 1.0).abs() < 1e-9);
        // Weight decay alone tells nothing.
        assert_eq!(Search::default().take(Step { reach: 0.05, earns: false, ..step(0.1) }), 1.0);
        for reach in [0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(first(0.1, reach), 1.0);
        }
    }

    #[test]
    fn a_less_certain_policy_takes_longer_steps() {
        let first = |entropy| Search::default().take(Step { entropy, ..step(1.0) }).powi(2) * quadratic(1.0);
        for (entropy, counts) in [(0.5, 0.5), (3.0, MOST_ENTROPY)] {
            assert!((first(entropy) / (ADAMS_FIRST * counts) - 1.0).abs() < 1e-12);
        }
        for unknown in [0.0, 1e-9, f64::NAN] {
            assert!((first(unknown) / (ADAMS_FIRST * LEAST_ENTROPY) - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn steps_that_move_nothing_change_nothing() {
        let (mut silent, mut plain) = (Search::default(), Search::default());
        for kl in [0.0, 1e-14, 7e-14] {
            assert_eq!(silent.take(step(kl)), 1.0);
        }
        assert_eq!(silent, Search { rate: TOP, earned: true, ..plain });
        for _ in 0..10 {
            assert_eq!(silent.take(step(0.5)), plain.take(step(0.5)));
        }
    }

    #[test]
    fn steps_without_an_advantage_tell_nothing() {
        let without = |kl: f64| Step { earns: false, ..step(kl) };
        let (mut sparse, mut plain) = (Search::default(), Search::default());
        for kl in [0.3, 0.1, 0.2, 0.4, 0.3, 0.1, 0.2] {
            let share = plain.take(step(kl));
            assert_eq!(sparse.take(step(kl)), share);
            // Adam's mean goes on, as far as steps are taken; a spike is one without an advantage too.
            assert_eq!(sparse.take(without(0.1 * kl)), share);
            assert!(sparse.take(without(1e6)) < 0.1 * share);
            assert_eq!((sparse.log, sparse.found()), (plain.log, plain.found()));
        }
        // Where no batch has one, they are unknown.
        let (mut unknown, mut plain) = (Search::default(), Search::default());
        for kl in [0.3, 0.1, 0.2, 0.4, 0.3, 0.1, 0.2] {
            assert_eq!(unknown.take(without(kl)), plain.take(step(kl)));
        }
    }

    #[test]
    fn a_step_far_beyond_those_before_it_is_shortened() {
        let mut search = Search::default();
        for _ in 0..4 {
            search.take(step(at(1.0, false)));
        }
        let mean = search.kl / search.steps as f64;
        assert!((search.take(step(3.0)) / (SPIKE * mean / quadratic(3.0)).sqrt() - 1.0).abs() < 1e-12);
        assert_eq!([f64::NAN, f64::INFINITY].map(|kl| search.take(step(kl))), [0.0; 2]);
    }

    /// In a warm-up steps are whole up to twice the rate that the first ones tell, and then as long as at a constant rate. A rate of 0 comes
    /// before them.
    #[test]
    fn a_warm_up_ends_at_the_rate_that_its_first_steps_tell() {
        for steps in [5_u64, 20, 80] {
            for (times, end) in [(1.0, 1.0), (1.8, 1.0), (10.0, 0.1), (300.0, 1.0 / 300.0)] {
                let mut search = Search::default();
                let length = |place: u64| {
                    let part = place.min(steps) as f64 / steps as f64;
                    part * search.take(Step { rate: TOP * part, ..step(at(times * part, place == 1)) })
                };
                let lengths: Vec<f64> = (0..120).map(length).collect();
                assert_eq!(lengths[0], 0.0);
                let last = lengths[119];
                assert!((last / end - 1.0).abs() < 1e-9, "{steps} {times}: {last} {end}");
                let most = lengths.iter().copied().fold(0.0, f64::max);
                assert!(most <= 2.0 * last + 1e-9, "{steps} {times}: {most} {last}");
            }
        }
    }

    #[test]
    fn a_state_comes_back_to_the_bit() {
        let mut search = Search::default();
        let _ = [0.1, 0.2].map(|kl| search.take(step(kl)));
        assert_eq!(Search::load(&search.save()), Some(search));
        for foreign in ["", "0", "7ff8000000000000 0 0 1 true", "0 0 0 -1 true", "0 0 0 1 2", "0 0 0 1"] {
            assert_eq!(Search::load(foreign), None);
        }
    }
}
