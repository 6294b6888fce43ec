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
/// The logarithm of 1.5: a rate of up to so many times the one that was told is taken whole. Seeds tell a rate within a fifth of their mean.
const WHOLE: f64 = 0.405_465_108_108_164_4;
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

/// A part of a step that was measured too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Its length, as a share of the step's.
    pub share: f64,
    /// Its KL divergence, nats per completion token.
    pub kl: f64,
}

/// The search's state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Search {
    /// The logarithm of the rate that was told, divided by the highest one so far; after the first steps it is above 0 where steps are whole.
    log: f64,
    /// Sum of the KL divergences of what was taken of the steps, and the number of steps that moved the policy.
    kl: f64,
    steps: u64,
    /// Sum over the first steps of ln(divergence by the square law / divergence) of the whole step.
    bend: f64,
    /// Highest learning rate so far, to which the share refers.
    rate: f64,
    /// Whether a batch had an advantage. Some trainers give none, so that their steps tell the rate all the same.
    earned: bool,
}

impl Search {
    /// The share of `step`, by a guess, that is to be measured too before it is taken; `None` if `step` is taken whole or tells nothing.
    pub(crate) fn part(&mut self, step: Step) -> Option<f64> {
        self.refer_to(step.rate);
        let share = self.told(step, self.square(step.kl)).exp();
        let tells = self.begins() && self.counts(step) && self.moves(step);
        (tells && share > 0.0 && share < (-WHOLE).exp()).then_some(share)
    }

    /// How much of `step` is taken; its numbers are of the whole step. If a part was measured, no more than that.
    pub(crate) fn take(&mut self, step: Step, part: Option<Part>) -> f64 {
        self.refer_to(step.rate);
        let measured = |Part { share, kl }: Part| (kl / share.powi(2), share);
        let (kl, limit) = part.map_or_else(|| (self.square(step.kl), 1.0), measured);
        if !kl.is_finite() {
            return 0.0;
        }
        self.earned |= step.earns;
        let (is_first, counts) = (self.has_not_begun(), !self.begins() || self.counts(step));
        if !self.moves(Step { kl, ..step }) {
            return self.share().min(limit);
        }
        if self.begins() && counts {
            self.log = self.told(step, kl);
            self.bend += (kl / step.kl).ln();
        }
        let share = self.share().min(limit);
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

    /// The logarithm of the share that `step`, of divergence `kl` by the square law, and those before it tell. The first counts as the other five.
    fn told(&self, step: Step, kl: f64) -> f64 {
        let count = if self.has_not_begun() { 1 } else { self.steps + FIRST - 1 };
        self.log + (0.5 * (self.good(step) / kl).ln() - self.log) / count as f64
    }

    /// Divergence by the square law of a whole step of divergence `kl`: as the first steps had it, or by a guess.
    fn square(&self, kl: f64) -> f64 {
        if self.has_not_begun() { guessed_square(kl) } else { kl * (self.bend / self.steps.min(FIRST) as f64).exp() }
    }

    /// KL divergence of a good step in the place of `step`, nats per completion token.
    fn good(&self, step: Step) -> f64 {
        let share = if self.has_not_begun() { ADAMS_FIRST * step.reach.powi(2) } else { LATER };
        share * counted(step.entropy)
    }

    /// True if `step` is evidence: it has an advantage, or nobody gives any.
    fn counts(&self, step: Step) -> bool {
        step.earns || !self.earned
    }

    /// True if `step` moves the policy, by more than rounding and for another reason than weight decay.
    fn moves(&self, step: Step) -> bool {
        let has_gradient = step.reach > if step.earns { 0.0 } else { NO_GRADIENT } && step.reach.is_finite();
        step.kl >= STILL * LATER * counted(step.entropy) && (!self.has_not_begun() || has_gradient)
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
                // It is more than half again what was told now.
                self.log -= WHOLE;
            }
        }
        self.rate = rate;
    }

    /// The state as text.
    pub(crate) fn save(&self) -> String {
        let numbers = [self.log, self.kl, self.rate, self.bend].map(|number| format!("{:016x}", number.to_bits()));
        format!("{} {} {}", numbers.join(" "), self.steps, self.earned)
    }

    /// The state that `text` holds; `None` for text that `save` did not write.
    pub(crate) fn load(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[log, kl, rate, bend, steps, earned] = words.as_slice() else { return None };
        let number =
            |word: &str| u64::from_str_radix(word, 16).ok().map(f64::from_bits).filter(|number| number.is_finite());
        let [log, kl, rate, bend] = [number(log)?, number(kl)?, number(rate)?, number(bend)?];
        Some(Self { log, kl, rate, bend, steps: steps.parse().ok()?, earned: earned.parse().ok()? })
    }
}

/// The entropy as far as it counts.
fn counted(entropy: f64) -> f64 {
    // `max` drops a number that is none.
    entropy.max(LEAST_ENTROPY).clamp(LEAST_ENTROPY, MOST_ENTROPY)
}

/// A guess at the divergence by the square law of a step of divergence `kl`. Steps near a nat and above move logits in proportion, so that a part
/// of them may have more than that law says. Measured steps of 0.1 to 4 nats had it within a factor of four on two tasks; on a third, steps of 1.7
/// nats obeyed the law.
fn guessed_square(kl: f64) -> f64 {
    kl * (1.0 + kl).powf(1.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The highest rate, to which shares refer, and an entropy.
    const TOP: f64 = 1e-3;
    const ENTROPY: f64 = 0.15;
    /// The guess at a step that is taken whole is as near to the square law.
    const NEAR: f64 = 5e-3;

    fn step(kl: f64) -> Step {
        Step { kl, entropy: ENTROPY, rate: TOP, reach: 1.0, earns: true }
    }

    /// Divergence of a whole step at `times` the rate that it tells: of the first one, or of one after it.
    fn at(times: f64, is_first: bool) -> f64 {
        let good = if is_first { ADAMS_FIRST } else { LATER };
        good * ENTROPY * times * times
    }

    impl Search {
        /// Takes a step that obeys the square law. Returns the share that is told, or the part of a spike that is taken.
        fn on(&mut self, step: Step) -> f64 {
            self.by(2.0, step)
        }

        /// Takes a step whose divergence grows with the power `law` of its length; a part is measured where it is asked for.
        fn by(&mut self, law: f64, step: Step) -> f64 {
            let part = self.part(step).map(|share| Part { share, kl: step.kl * share.powf(law) });
            let left = self.take(step, part);
            assert!(part.is_none_or(|part| left <= part.share));
            if part.is_some() { self.share() } else { left }
        }
    }

    #[test]
    fn the_first_steps_tell_the_rate_and_it_stays() {
        let mut search = Search::default();
        let told = |kl: f64, good: f64| 0.5 * (good * ENTROPY / kl).ln();
        let (first, later) = (told(0.3, ADAMS_FIRST), [0.1, 0.2, 0.4, 0.3, 0.1]);
        assert!((search.on(step(0.3)) / first.exp() - 1.0).abs() < 1e-12);
        for (place, kl) in later.into_iter().enumerate() {
            assert_eq!(search.found(), None);
            let sum = 5.0 * first + later[..=place].iter().map(|kl| told(*kl, LATER)).sum::<f64>();
            let mean = sum / (6 + place) as f64;
            assert!((search.on(step(kl)) / mean.exp() - 1.0).abs() < 1e-12, "{kl}");
        }
        let share = search.share();
        assert_eq!(search.found(), Some(share * TOP));
        assert_eq!([0.01, 0.2, 0.3].map(|kl| search.on(step(kl))), [share; 3]);
    }

    #[test]
    fn a_rate_that_is_up_to_half_again_as_high_is_left_alone() {
        for (times, whole) in [(0.1, true), (1.0, true), (1.4, true), (1.6, false)] {
            let mut search = Search::default();
            for place in 0..2 * FIRST {
                let share = search.on(step(at(times, place == 0)));
                assert_eq!(share == 1.0, whole, "{times}");
                assert!(whole || (share * times - 1.0).abs() < NEAR);
            }
        }
    }

    #[test]
    fn a_part_of_a_long_step_tells_the_rate() {
        for law in [1.0, 1.5, 2.0] {
            let (mut search, mut logs) = (Search::default(), Vec::new());
            for place in 0..FIRST {
                let good = if place == 0 { ADAMS_FIRST } else { LATER } * ENTROPY;
                let by_guess = (good / guessed_square(3.0)).sqrt();
                let share = search.part(step(3.0)).unwrap();
                assert!(place > 0 || (share / by_guess - 1.0).abs() < 1e-12);
                search.by(law, step(3.0));
                logs.push(0.5 * (good / (3.0 * share.powf(law - 2.0))).ln());
                let sum = 4.0 * logs[0] + logs.iter().sum::<f64>();
                assert!((search.log - sum / if place == 0 { 5.0 } else { (place + 5) as f64 }).abs() < 1e-12, "{law}");
            }
            // A later step is counted as the first ones were.
            let (mean, bend) = (search.kl / search.steps as f64, (search.bend / FIRST as f64).exp());
            assert_eq!(search.part(step(300.0)), None);
            assert!((search.on(step(300.0)) / (SPIKE * mean / (300.0 * bend)).sqrt() - 1.0).abs() < 1e-12, "{law}");
        }
    }

    #[test]
    fn a_step_that_is_whole_or_tells_nothing_is_measured_once() {
        for kl in [at(1.4, true), 0.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(Search::default().part(step(kl)), None, "{kl}");
        }
        assert!(Search::default().part(step(at(1.6, true))).is_some_and(|share| share < 1.0 / 1.5));
        assert_eq!(Search::default().part(Step { reach: 0.05, earns: false, ..step(0.1) }), None);
        let (mut earned, mut right) = (Search::default(), Search::default());
        earned.on(step(0.1));
        assert_eq!(earned.part(Step { earns: false, ..step(0.1) }), None);
        // One long step after a first one that was right is taken as that one was.
        right.on(step(at(1.0, true)));
        assert_eq!((right.part(step(at(4.0, false))), right.on(step(at(4.0, false)))), (None, 1.0));
        // A part that could not be measured leaves nothing, and changes nothing else.
        let mut broken = earned;
        assert_eq!(broken.take(step(0.1), Some(Part { share: 0.5, kl: f64::NAN })), 0.0);
        assert_eq!(broken, earned);
    }

    /// The first gradient moves a weight by less than the rate where zeros came before it, and tells the same.
    #[test]
    fn a_short_first_step_tells_the_rate_too() {
        let first = |kl: f64, reach: f64| Search::default().on(Step { reach, ..step(kl) });
        assert!((first(at(4.0 * 0.5, true), 0.5) / first(at(4.0, true), 1.0) - 1.0).abs() < NEAR);
        assert!((first(at(4.0 * 0.05, true), 0.05) / first(at(4.0, true), 1.0) - 1.0).abs() < NEAR);
        // Weight decay alone tells nothing.
        assert_eq!(Search::default().on(Step { reach: 0.05, earns: false, ..step(0.1) }), 1.0);
        for reach in [0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(first(0.1, reach), 1.0);
        }
    }

    #[test]
    fn a_less_certain_policy_takes_longer_steps() {
        let first = |entropy| Search::default().on(Step { entropy, ..step(1.0) }).powi(2);
        for (entropy, counts) in [(0.5, 0.5), (3.0, MOST_ENTROPY)] {
            assert!((first(entropy) / (ADAMS_FIRST * counts) - 1.0).abs() < 1e-12);
        }
        for unknown in [0.0, NEAR, f64::NAN] {
            assert!((first(unknown) / (ADAMS_FIRST * LEAST_ENTROPY) - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn steps_that_move_nothing_change_nothing() {
        let (mut silent, mut plain) = (Search::default(), Search::default());
        for kl in [0.0, 1e-14, 7e-14] {
            assert_eq!(silent.on(step(kl)), 1.0);
        }
        assert_eq!(silent, Search { rate: TOP, earned: true, ..plain });
        for _ in 0..10 {
            assert_eq!(silent.on(step(0.5)), plain.on(step(0.5)));
        }
    }

    #[test]
    fn steps_without_an_advantage_tell_nothing() {
        let without = |kl: f64| Step { earns: false, ..step(kl) };
        let (mut sparse, mut plain) = (Search::default(), Search::default());
        for kl in [0.3, 0.1, 0.2, 0.4, 0.3, 0.1, 0.2] {
            let share = plain.on(step(kl));
            assert_eq!(sparse.on(step(kl)), share);
            // Adam's mean goes on, as far as steps are taken; a spike is one without an advantage too.
            assert_eq!(sparse.on(without(0.1 * kl)), share);
            assert!(sparse.on(without(1e6)) < 0.1 * share);
            assert_eq!((sparse.log, sparse.found()), (plain.log, plain.found()));
        }
        // Where no batch has one, they are unknown.
        let (mut unknown, mut plain) = (Search::default(), Search::default());
        for kl in [0.3, 0.1, 0.2, 0.4, 0.3, 0.1, 0.2] {
            assert_eq!(unknown.on(without(kl)), plain.on(step(kl)));
        }
    }

    #[test]
    fn a_step_far_beyond_those_before_it_is_shortened() {
        let mut search = Search::default();
        for _ in 0..4 {
            search.on(step(at(1.0, false)));
        }
        let mean = search.kl / search.steps as f64;
        assert!((search.on(step(3.0)) / (SPIKE * mean / 3.0).sqrt() - 1.0).abs() < NEAR);
        assert_eq!([f64::NAN, f64::INFINITY].map(|kl| search.on(step(kl))), [0.0; 2]);
    }

    /// In a warm-up steps are whole up to 1.5 times the rate that the first ones tell, and then as long as at a constant rate. A rate of 0 comes
    /// before them.
    #[test]
    fn a_warm_up_ends_at_the_rate_that_its_first_steps_tell() {
        for steps in [5_u64, 20, 80] {
            for (times, end) in [(1.0, 1.0), (1.4, 1.0), (10.0, 0.1), (300.0, 1.0 / 300.0)] {
                let mut search = Search::default();
                let length = |place: u64| {
                    let part = place.min(steps) as f64 / steps as f64;
                    part * search.on(Step { rate: TOP * part, ..step(at(times * part, place == 1)) })
                };
                let lengths: Vec<f64> = (0..120).map(length).collect();
                assert_eq!(lengths[0], 0.0);
                let last = lengths[119];
                assert!((last / end - 1.0).abs() < NEAR, "{steps} {times}: {last} {end}");
                let most = lengths.iter().copied().fold(0.0, f64::max);
                assert!(most <= 1.5 * last + NEAR, "{steps} {times}: {most} {last}");
            }
        }
    }

    #[test]
    fn a_state_comes_back_to_the_bit() {
        let mut search = Search::default();
        let _ = [0.1, 0.2].map(|kl| search.on(step(kl)));
        assert_eq!(Search::load(&search.save()), Some(search));
        for foreign in ["", "0", "7ff8000000000000 0 0 0 1 true", "0 0 0 0 -1 true", "0 0 0 0 1 2", "0 0 0 1 true"] {
            assert_eq!(Search::load(foreign), None);
        }
    }
}
