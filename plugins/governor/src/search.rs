//! The share of the steps that finds itself: as long as the last step still points downhill on new completions, steps may be longer.
//!
//! The first steps are judged by their KL divergence. After them the cosine between the last step and this batch's `−gradient`, which
//! falls as steps grow, moves the share: up above [`AIM`], down below it. After [`SEARCHED`] cosines it stays, as a learning rate does.

use crate::target::scale;

/// So many steps are judged by their divergence: the optimizer's mean of few gradients is mostly noise, and points nowhere.
const FIRST: u64 = 6;
/// Largest KL divergence of those steps, as a share of the policy's entropy: a policy that is less certain may move further.
const START: f64 = 2e-3;
/// That divergence is no less than this, nats per completion token: some trainers give no log-probabilities.
const LEAST_START: f64 = 1e-4;
/// A share above this is no evidence that the rate is too high: such a step is taken whole.
const WHOLE: f64 = 0.5;
/// A step below this share of the first divergence is rounding and moved nothing: nothing was earned yet. It is no evidence.
const STILL: f64 = 1e-6;
/// The cosine that is aimed at.
const AIM: f64 = 0.04;
/// How far the share's logarithm moves for a cosine that is off by as much as cosines are large (their root mean square).
const RATE: f64 = 0.12;
/// Largest number of such units in one step.
const CLIP: f64 = 2.0;
/// How far the logarithm may rise above that of a whole step, ln 3: so much has to speak against a rate before a share falls below 1.
const ROOM: f64 = 1.1;
/// So many cosines are searched with. Later ones would lower the share on and on: they go to 0 as the policy gets good.
const SEARCHED: u64 = 25;
/// No step has more than so many times the mean KL divergence of those before it.
const SPIKE: f64 = 10.0;
/// Share of a new square in the cosines' mean square.
const NEW: f64 = 0.1;

/// The search's state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Search {
    /// The share's logarithm, above 0 for a whole step with room, and the sum of those that were searched with.
    log: f64,
    logs: f64,
    /// Mean square of the cosines, which begins at 0, and how many there were.
    square: f64,
    cosines: u64,
    /// Sum of the KL divergences of what was taken of the steps, and the number of steps that moved the policy.
    kl: f64,
    steps: u64,
    /// Highest learning rate so far, to which the share refers.
    rate: f64,
}

impl Search {
    /// How much of a step is taken: `cosine` is the last step's with this `−gradient`, none at the first; `kl` is of the whole
    /// step, which has the learning rate `rate`; `entropy` is the policy's, nats per completion token.
    pub(crate) fn take(&mut self, cosine: Option<f64>, kl: f64, rate: f64, entropy: f64) -> f64 {
        self.refer_to(rate);
        if let Some(cosine) = cosine.filter(|_| self.steps >= FIRST) {
            self.learn(cosine);
        }
        if !kl.is_finite() {
            return 0.0;
        }
        let kl = quadratic(kl);
        let start = (START * entropy).max(LEAST_START);
        if kl < STILL * start {
            return self.share();
        }
        let share = if self.steps < FIRST { self.begin(scale(start, kl)) } else { self.share() };
        let taken = share * share * kl;
        let most = if self.steps == 0 { f64::INFINITY } else { SPIKE * self.kl / self.steps as f64 };
        if taken > 0.0 {
            self.kl += taken.min(most);
            self.steps += 1;
        }
        share * scale(most, taken)
    }

    /// The share of a step that is no spike.
    pub(crate) fn share(&self) -> f64 {
        self.log.min(0.0).exp()
    }

    /// The learning rate that was found, once the search has ended.
    pub(crate) fn found(&self) -> Option<f64> {
        (self.cosines == SEARCHED).then(|| self.share() * self.rate)
    }

    /// Takes one of the first steps, of which `share` has the first divergence. The search begins with the geometric mean of these
    /// shares. Adam's first step has no part in it: every weight moves by the whole rate there, whatever its gradient says.
    fn begin(&mut self, share: f64) -> f64 {
        if self.steps > 0 {
            self.log += (share.ln() - self.log) / self.steps as f64;
        }
        if self.steps + 1 == FIRST && self.share() >= WHOLE {
            self.log = 0.0;
        }
        if share >= WHOLE { 1.0 } else { share }
    }

    /// Keeps `share · rate` where a warm-up raises the rate: the search is for a learning rate. Where nothing spoke against the rate so
    /// far, whole steps rise with it.
    fn refer_to(&mut self, rate: f64) {
        if rate <= self.rate {
            return;
        }
        if self.log < 0.0 {
            let less = (self.rate / rate).ln();
            self.log += less;
            self.logs += less * self.cosines as f64;
        }
        self.rate = rate;
    }

    fn learn(&mut self, cosine: f64) {
        if self.cosines == SEARCHED {
            return;
        }
        self.cosines += 1;
        self.square += NEW * (cosine * cosine - self.square);
        let rms = (self.square / (1.0 - (1.0 - NEW).powi(self.cosines as i32))).sqrt();
        if rms > 0.0 {
            self.log = (self.log + RATE * ((cosine - AIM) / rms).clamp(-CLIP, CLIP)).min(ROOM);
        }
        self.logs += self.log;
        if self.cosines == SEARCHED {
            // One step's share is noise: their geometric mean stays.
            self.log = (self.logs / SEARCHED as f64).min(0.0);
        }
    }

    /// The state as text.
    pub(crate) fn save(&self) -> String {
        let numbers =
            [self.log, self.logs, self.square, self.kl, self.rate].map(|number| format!("{:016x}", number.to_bits()));
        format!("{} {} {}", numbers.join(" "), self.cosines, self.steps)
    }

    /// The state that `text` holds; `None` for text that `save` did not write.
    pub(crate) fn load(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[log, logs, square, kl, rate, cosines, steps] = words.as_slice() else { return None };
        let number =
            |word: &str| u64::from_str_radix(word, 16).ok().map(f64::from_bits).filter(|number| number.is_finite());
        let count = |word: &str| word.parse().ok();
        Some(Self {
            log: number(log)?,
            logs: number(logs)?,
            square: number(square)?,
            kl: number(kl)?,
            cosines: count(cosines).filter(|cosines| *cosines <= SEARCHED)?,
            steps: count(steps)?,
            rate: number(rate)?,
        })
    }
}

/// Divergence that a step of divergence `kl` would have if short and long steps grew alike, with the square of their length. Steps near a nat and
/// above move logits in proportion, so that a part of them has more than the square law says. The factor is of measured steps of 0.1 to
/// 4 nats, which it meets within a factor of four.
fn quadratic(kl: f64) -> f64 {
    kl * (1.0 + kl).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entropy at which the first divergence is 3e-4 nats.
    const ENTROPY: f64 = 0.15;

    /// Shares of steps with one cosine and a whole step of `kl`, from the first on.
    fn shares(cosine: f64, kl: f64, count: usize) -> Vec<f64> {
        let mut search = Search::default();
        (0..count).map(|at| search.take((at > 0).then_some(cosine), kl, 1e-3, ENTROPY)).collect()
    }

    #[test]
    fn the_first_steps_have_one_divergence() {
        let first = shares(0.1, 0.03, FIRST as usize + 1);
        let expected = (3e-4 / quadratic(0.03)).sqrt();
        assert!(first[..FIRST as usize].iter().all(|share| (share / expected - 1.0).abs() < 1e-12), "{first:?}");
        // Adam's first step is bounded, and says nothing about the rate. Neither do shares of a half.
        let mut search = Search::default();
        for kl in [3.0, 1e-5, 1e-5, 1e-3, 1e-5, 1e-5] {
            let whole = scale(3e-4, quadratic(kl)) >= WHOLE;
            assert_eq!(search.take(Some(-1.0), kl, 1e-3, ENTROPY) == 1.0, whole, "{kl}");
        }
        assert_eq!((search.share(), search.steps), (1.0, FIRST));
    }

    #[test]
    fn a_less_certain_policy_begins_with_longer_steps() {
        let first = |entropy| Search::default().take(None, 1.0, 1e-3, entropy).powi(2) * quadratic(1.0);
        assert!((first(1.5) / 3e-3 - 1.0).abs() < 1e-12);
        for unknown in [0.0, 1e-9, f64::NAN] {
            assert!((first(unknown) / LEAST_START - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn steps_that_move_nothing_change_nothing() {
        let (mut silent, mut plain) = (Search::default(), Search::default());
        for kl in [0.0, 1e-14, 7e-14] {
            assert_eq!(silent.take(None, kl, 1e-3, ENTROPY), 1.0);
        }
        assert_eq!(silent, Search { rate: 1e-3, ..plain });
        for at in 0..40 {
            let cosine = (at > 0).then_some(0.02);
            assert_eq!(silent.take(cosine, 0.5, 1e-3, ENTROPY), plain.take(cosine, 0.5, 1e-3, ENTROPY));
        }
    }

    #[test]
    fn a_step_that_still_points_downhill_raises_the_share() {
        let rising = shares(0.1, 1.0, 20);
        // Cosines that are all the same are their own root mean square.
        assert!((rising[8] / (rising[7] * (RATE * (0.1 - AIM) / 0.1).exp()) - 1.0).abs() < 1e-12);
        assert!(rising.is_sorted() && *shares(0.1, 1.3e-3, 40).last().unwrap() == 1.0);
    }

    /// A whole share stays whole until as much spoke against it as lowers another to a third.
    #[test]
    fn a_rate_that_was_right_is_left_alone() {
        let mut search = Search::default();
        let mut take = |cosine| search.take(Some(cosine), 1e-5, 1e-3, ENTROPY);
        let cosines = [vec![0.1; 26], vec![-0.1; 5]].concat();
        assert!(cosines.into_iter().all(|cosine| take(cosine) == 1.0));
        assert_eq!(search.found(), Some(1e-3));
    }

    #[test]
    fn it_stays_where_the_search_was() {
        let falling = shares(-0.1, 1.0, 80);
        let (searched, kept) = falling.split_at((FIRST + SEARCHED) as usize - 1);
        assert!(searched.is_sorted_by(|a, b| a >= b));
        let last = searched[searched.len() - 1].ln() + RATE * (-0.1 - AIM) / 0.1;
        let logs: f64 = searched[FIRST as usize..].iter().map(|share| share.ln()).sum();
        let mean = ((logs + last) / SEARCHED as f64).exp();
        assert!(kept.iter().all(|share| (share / mean - 1.0).abs() < 1e-9));
    }

    #[test]
    fn a_step_far_beyond_those_before_it_is_shortened() {
        let mut search = Search::default();
        for at in 0..4 {
            search.take((at > 0).then_some(0.0), 3e-2, 1e-3, ENTROPY);
        }
        search.steps = FIRST;
        search.kl = 3e-4 * FIRST as f64;
        assert!((search.take(None, 3.0, 1e-3, ENTROPY) / (SPIKE * 3e-4 / quadratic(3.0)).sqrt() - 1.0).abs() < 1e-12);
        assert_eq!([f64::NAN, f64::INFINITY].map(|kl| search.take(None, kl, 1e-3, ENTROPY)), [0.0; 2]);
    }

    /// Steps of a warm-up to a rate that is too high are as those at a constant rate, whose length is the rate times the share. A rate of 0
    /// comes before them. In a warm-up to a rate that is right, all steps are whole.
    #[test]
    fn a_warm_up_changes_no_step() {
        let warm = |at: u64| 0.02 * at.min(50) as f64;
        let lengths = |kl: f64, cosine: f64, rates: &dyn Fn(u64) -> f64| {
            let mut search = Search::default();
            let length = |at| {
                let rate = rates(at);
                rate * search.take((at > 0).then_some(cosine), kl * rate * rate, rate, ENTROPY)
            };
            (0..60).map(length).collect::<Vec<f64>>()
        };
        let (constant, warmed) = (lengths(9.0, -0.1, &|_| 1.0), lengths(9.0, -0.1, &warm));
        assert_eq!(warmed[0], 0.0);
        // The law of long steps is a rough one, and the whole step is a shorter one in a warm-up.
        for (warm, constant) in warmed[8..].iter().zip(&constant[7..]) {
            assert!((0.9..11.0).contains(&(warm / constant)), "{warm} {constant}");
        }
        assert!(lengths(3e-4, 0.1, &warm).into_iter().zip(0..).all(|(length, at)| length == warm(at)));
    }

    #[test]
    fn a_state_comes_back_to_the_bit() {
        let mut search = Search::default();
        let _ = [None, Some(0.03), Some(-0.2)].map(|cosine| search.take(cosine, 0.1, 1e-3, ENTROPY));
        assert_eq!(Search::load(&search.save()), Some(search));
        for foreign in ["", "0", "7ff8000000000000 0 0 0 0 1 1", "0 0 0 0 0 26 31", "0 0 0 0 0 1 1 2", "0 0 0 0 0 1"] {
            assert_eq!(Search::load(foreign), None);
        }
    }
}
