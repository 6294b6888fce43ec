//! A target that finds itself: as long as the last step still points downhill on new completions, steps may be longer.
//!
//! The cosine between the last step and this batch's `−gradient` falls as steps grow: above [`AIM`] the
//! target rises, below it the target falls. And over the last part of a run the steps' lengths go to 0 linearly.

use std::f64::consts::LN_2;

/// The cosine that is aimed at.
const AIM: f64 = 0.04;
/// How far the target's logarithm moves for a cosine that is off by as much as cosines are large (their root mean square).
const RATE: f64 = 0.5;
/// Largest number of such units in one step.
const CLIP: f64 = 2.0;
/// So many cosines move nothing: the optimizer's mean of few gradients is mostly noise, and points nowhere.
const HELD: f64 = 5.0;
/// The first step's target, nats per completion token.
const START: f64 = 3e-4;
/// The target does not fall below this share of its highest value.
const FLOOR: f64 = 0.003;
/// Share of a new square in the cosines' mean square.
const NEW: f64 = 0.1;
/// From this share of a run on, lengths fall.
const FALL: f64 = 0.7;

/// The search's state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Search {
    /// The target's logarithm, and its highest value so far.
    log: f64,
    peak: f64,
    /// Mean square of the cosines, which begins at 0, and how many there were.
    square: f64,
    cosines: f64,
}

impl Default for Search {
    fn default() -> Self {
        let start = START.ln();
        Self { log: start, peak: start, square: 0.0, cosines: 0.0 }
    }
}

impl Search {
    /// The target of a step: `cosine` is the last step's with this `−gradient`, none at the first; `kl` is of the whole step;
    /// `done` the share of the run's steps that lie behind.
    pub(crate) fn target(&mut self, cosine: Option<f64>, kl: f64, done: f64) -> f64 {
        if let Some(cosine) = cosine {
            self.cosines += 1.0;
            self.square += NEW * (cosine * cosine - self.square);
            let rms = (self.square / (1.0 - (1.0 - NEW).powf(self.cosines))).sqrt();
            if rms > 0.0 && self.cosines > HELD {
                self.log += RATE * ((cosine - AIM) / rms).clamp(-CLIP, CLIP);
            }
            // Where the whole step is shorter than the target, a higher one would say nothing.
            if kl > 0.0 && kl.is_finite() {
                self.log = self.log.min(kl.ln() + LN_2);
            }
            self.peak = self.peak.max(self.log);
            self.log = self.log.max(self.peak + FLOOR.ln());
        }
        let left = ((1.0 - done) / (1.0 - FALL)).clamp(0.0, 1.0);
        self.log.exp() * left * left
    }

    /// The state as text.
    pub(crate) fn save(&self) -> String {
        [self.log, self.peak, self.square, self.cosines].map(|number| format!("{:016x}", number.to_bits())).join(" ")
    }

    /// The state of such a text; none where it is none.
    pub(crate) fn load(text: &str) -> Option<Self> {
        let number =
            |word: &str| u64::from_str_radix(word, 16).ok().map(f64::from_bits).filter(|number| number.is_finite());
        let numbers: Option<Vec<f64>> = text.split(' ').map(number).collect();
        let &[log, peak, square, cosines] = numbers?.as_slice() else { return None };
        Some(Self { log, peak, square, cosines })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Targets of steps with one cosine and a whole step of 1 nat, early in a run, from the first that may move on.
    fn targets(cosine: f64, count: usize) -> Vec<f64> {
        let mut search = Search::default();
        let held = (0..=HELD as usize).map(|at| search.target((at > 0).then_some(cosine), 1.0, 0.0));
        assert_eq!(held.collect::<Vec<_>>(), [START.ln().exp(); HELD as usize + 1]);
        (0..count).map(|_| search.target(Some(cosine), 1.0, 0.0)).collect()
    }

    #[test]
    fn a_step_that_still_points_downhill_raises_the_target() {
        let rising = targets(0.1, 30);
        // Cosines that are all the same are their own root mean square.
        assert!((rising[0] / (START * (RATE * (0.1 - AIM) / 0.1).exp()) - 1.0).abs() < 1e-12);
        assert!(rising.is_sorted() && rising[29] > rising[0]);
    }

    #[test]
    fn one_that_points_elsewhere_lowers_it_to_a_share_of_the_highest() {
        let falling = targets(-0.1, 30);
        assert!(falling.is_sorted_by(|a, b| a >= b));
        assert!((falling[29] / (FLOOR * START) - 1.0).abs() < 1e-12);
        // Cosines of 0 have no size to move by.
        assert_eq!(targets(0.0, 3), [START.ln().exp(); 3]);
    }

    #[test]
    fn it_stays_near_steps_that_are_shorter() {
        let mut search = Search::default();
        let last = (0..50).map(|_| search.target(Some(0.1), 1e-6, 0.0)).last().unwrap();
        assert!(last <= FLOOR.max(2e-6 / START) * START * (1.0 + 1e-12), "{last}");
    }

    #[test]
    fn lengths_fall_to_nothing_at_the_end() {
        let at = |done: f64| Search::default().target(None, 1.0, done);
        assert_eq!([at(0.0), at(0.5)], [at(FALL); 2]);
        assert!((at(0.85) / at(0.0) - 0.25).abs() < 1e-12);
        assert!(at(1.0) == 0.0 && at(2.0) == 0.0);
    }

    #[test]
    fn a_state_comes_back_to_the_bit() {
        let mut search = Search::default();
        let _ = [None, Some(0.03), Some(-0.2)].map(|cosine| search.target(cosine, 0.1, 0.3));
        assert_eq!(Search::load(&search.save()), Some(search));
        for foreign in ["", "0", "7ff8000000000000 0 0 0", "0 0 0 0 0"] {
            assert_eq!(Search::load(foreign), None);
        }
    }
}
