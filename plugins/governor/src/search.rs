//! The share of the steps that finds itself: as long as the last step still points downhill on new completions, steps may be longer.
//!
//! The cosine between the last step and this batch's `−gradient` falls as steps grow: above [`AIM`] the share rises, below it the
//! share falls. After [`SEARCHED`] cosines it stays, as a learning rate does.

use crate::target::scale;

/// The cosine that is aimed at.
const AIM: f64 = 0.04;
/// How far the share's logarithm moves for a cosine that is off by as much as cosines are large (their root mean square).
const RATE: f64 = 0.25;
/// Largest number of such units in one step.
const CLIP: f64 = 2.0;
/// So many cosines move nothing: the optimizer's mean of few gradients is mostly noise, and points nowhere.
const HELD: u64 = 5;
/// So many cosines are searched with. Later ones would lower the share on and on: they go to 0 as the policy gets good.
const SEARCHED: u64 = 30;
/// KL divergence of the first step that would have more, as a share of the policy's entropy: a policy that is less certain may move further.
const START: f64 = 2e-3;
/// That divergence is no less than this, nats per completion token: some trainers give no log-probabilities.
const LEAST_START: f64 = 1e-4;
/// No step has more than so many times the mean KL divergence of those before it.
const SPIKE: f64 = 10.0;
/// Share of a new square in the cosines' mean square.
const NEW: f64 = 0.1;

/// The search's state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Search {
    /// The share's logarithm, and the sum of those so far.
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
    /// True once a step was shortened, so that the search began.
    started: bool,
}

impl Search {
    /// How much of a step is taken: `cosine` is the last step's with this `−gradient`, none at the first; `kl` is of the whole
    /// step, which has the learning rate `rate`; `entropy` is the policy's, nats per completion token.
    pub(crate) fn take(&mut self, cosine: Option<f64>, kl: f64, rate: f64, entropy: f64) -> f64 {
        self.refer_to(rate);
        // Before the first step that moves the policy there is none whose direction could be judged.
        if let Some(cosine) = cosine.filter(|_| self.steps > 0) {
            self.learn(cosine);
        }
        if !kl.is_finite() {
            return 0.0;
        }
        let mut share = self.share();
        let start = (START * entropy).max(LEAST_START);
        if !self.started && self.cosines <= HELD && share * share * kl > start {
            (self.log, self.started) = (scale(start, kl).ln(), true);
            share = self.share();
        }
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
        self.log.exp()
    }

    /// Keeps `share · rate` where a warm-up raises the rate: the search is for a learning rate.
    fn refer_to(&mut self, rate: f64) {
        if rate <= self.rate {
            return;
        }
        if self.rate > 0.0 {
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
        if self.cosines > HELD && rms > 0.0 {
            // Of a step there is no more than the whole.
            self.log = (self.log + RATE * ((cosine - AIM) / rms).clamp(-CLIP, CLIP)).min(0.0);
        }
        self.logs += self.log;
        if self.cosines == SEARCHED {
            // One step's share is noise: their geometric mean stays.
            self.log = self.logs / SEARCHED as f64;
        }
    }

    /// The state as text.
    pub(crate) fn save(&self) -> String {
        let numbers =
            [self.log, self.logs, self.square, self.kl, self.rate].map(|number| format!("{:016x}", number.to_bits()));
        format!("{} {} {} {}", numbers.join(" "), self.cosines, self.steps, u8::from(self.started))
    }

    /// The state that `text` holds; `None` for text that `save` did not write.
    pub(crate) fn load(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[log, logs, square, kl, rate, cosines, steps, started] = words.as_slice() else { return None };
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
            started: matches!(started, "0" | "1").then_some(started == "1")?,
        })
    }
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
        let first = shares(0.1, 0.03, HELD as usize + 1);
        assert!(first.iter().all(|share| (share / 0.1 - 1.0).abs() < 1e-12), "{first:?}");
        // A step that is shorter than that is taken whole, and the first one that is longer begins the search.
        let mut search = Search::default();
        let taken = [(None, 1e-6), (Some(0.1), 5e-6), (Some(0.1), 3.0)];
        let taken = taken.map(|(cosine, kl)| search.take(cosine, kl, 1e-3, ENTROPY));
        assert_eq!(taken[..2], [1.0; 2]);
        assert!((search.share() / 1e-2 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_less_certain_policy_begins_with_longer_steps() {
        let first = |entropy| Search::default().take(None, 1.0, 1e-3, entropy).powi(2);
        assert!((first(1.5) / 3e-3 - 1.0).abs() < 1e-12);
        for unknown in [0.0, 1e-9, f64::NAN] {
            assert!((first(unknown) / LEAST_START - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn a_step_that_still_points_downhill_raises_the_share() {
        let rising = shares(0.1, 1.0, 20);
        // Cosines that are all the same are their own root mean square.
        assert!((rising[6] / (rising[5] * (RATE * (0.1 - AIM) / 0.1).exp()) - 1.0).abs() < 1e-12);
        assert!(rising.is_sorted() && *shares(0.1, 1e-3, 30).last().unwrap() == 1.0);
    }

    #[test]
    fn it_stays_where_the_search_was() {
        let falling = shares(-0.1, 1.0, 80);
        assert!(falling[..SEARCHED as usize].is_sorted_by(|a, b| a >= b));
        let (searched, kept) = falling.split_at(SEARCHED as usize);
        let last = searched[29].ln() + RATE * (-0.1 - AIM) / 0.1;
        let logs: f64 = searched[1..].iter().map(|share| share.ln()).sum();
        let mean = ((logs + last) / SEARCHED as f64).exp();
        assert!(kept.iter().all(|share| (share / mean - 1.0).abs() < 1e-9));
    }

    #[test]
    fn a_step_far_beyond_those_before_it_is_shortened() {
        let mut search = Search::default();
        for at in 0..4 {
            search.take((at > 0).then_some(0.0), 3e-2, 1e-3, ENTROPY);
        }
        assert!((search.take(None, 3.0, 1e-3, ENTROPY) / (SPIKE * 3e-4 / 3.0).sqrt() - 1.0).abs() < 1e-12);
        assert_eq!([f64::NAN, f64::INFINITY].map(|kl| search.take(None, kl, 1e-3, ENTROPY)), [0.0; 2]);
        // One that moves nothing counts for nothing.
        let before = search;
        assert_eq!((search.take(None, 0.0, 1e-3, ENTROPY), search), (before.share(), before));
    }

    /// Steps of a warm-up are as those at a constant rate, whose length is the rate times the share. A rate of 0 comes before them.
    #[test]
    fn a_warm_up_changes_no_step() {
        let lengths = |rates: &dyn Fn(u64) -> f64| {
            let mut search = Search::default();
            let length = |at| {
                let rate = rates(at);
                rate * search.take((at > 0).then_some(-0.1), 300.0 * rate * rate, rate, ENTROPY)
            };
            (0..60).map(length).collect::<Vec<f64>>()
        };
        let constant = lengths(&|_| 1.0);
        let warm = lengths(&|at| 0.02 * at.min(50) as f64);
        assert_eq!(warm[0], 0.0);
        for (warm, constant) in warm[1..].iter().zip(&constant) {
            assert!((warm / constant - 1.0).abs() < 1e-9, "{warm} {constant}");
        }
    }

    #[test]
    fn a_state_comes_back_to_the_bit() {
        let mut search = Search::default();
        let _ = [None, Some(0.03), Some(-0.2)].map(|cosine| search.take(cosine, 0.1, 1e-3, ENTROPY));
        assert_eq!(Search::load(&search.save()), Some(search));
        for foreign in
            ["", "0", "7ff8000000000000 0 0 0 0 1 1 1", "0 0 0 0 0 31 31 1", "0 0 0 0 0 1 1 2", "0 0 0 0 0 1 1"]
        {
            assert_eq!(Search::load(foreign), None);
        }
    }
}
