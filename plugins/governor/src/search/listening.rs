//! The rate follows the run: slopes of new batches raise a rate that is too low, and lower one that
//! is too high. They move it from the second step on, while the first steps still tell one.

use crate::slope::Slope;

/// The logarithm of the rate moves by a gain times the slope in standard errors. At first the gain
/// of the n-th slope is n times this. The first slopes are along few steps, and the mean of the
/// optimizer needs ten more to forget those before a rate was raised.
const RISES: f64 = 0.02;
/// From the thirteenth slope on the gain is this divided by n, so that the rate settles.
const SETTLES: f64 = 3.0;
/// Slope, in standard errors, at which a rate above the one that the first steps told stays as it
/// is where half of the completions are right: one that falls more steeply could go further. A
/// policy that is rarely right has less to lose, and goes further for the same slope.
const STEEP: f64 = 1.0;
/// A slope tells no more than so many standard errors.
const MOST: f64 = 3.0;
/// A step of more than this KL divergence, nats per token, is out of reach of first order: a slope
/// does not ask for longer ones.
const FAR: f64 = 0.5;
/// Weight of a new measurement in running means.
const NEW: f64 = 0.3;

/// State of a rate that follows the run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Listening {
    /// The logarithm of the rate, divided by the one that the first steps tell.
    pub lift: f64,
    /// Number of slopes so far.
    pub heard: u64,
    /// Running mean of ln(KL divergence / squared length) of what was taken of the steps; `None`
    /// before the first.
    pub cost: Option<f64>,
    /// KL divergence of what was taken of the last step, nats per token.
    pub last: f64,
    /// Running mean of the logarithm of the batches' upside.
    pub upside: f64,
}

impl Listening {
    /// Moves the rate by the slope of a new batch along the steps so far. It is raised only if the
    /// rate `limits` the steps: a slope says nothing against a limit that was not reached. Returns
    /// the slope in standard errors, at most [`MOST`]; `None` before the first step that was
    /// measured.
    pub(crate) fn hear(&mut self, slope: Slope, limits: bool) -> Option<f64> {
        let errors = slope.errors(self.cost?.exp()).clamp(-MOST, MOST);
        if !errors.is_finite() {
            return None;
        }
        self.heard += 1;
        let count = self.heard as f64;
        let gain = (RISES * count).min(SETTLES / count);
        let upside = slope.upside.ln();
        if upside.is_finite() {
            let weight = NEW.max(1.0 / count);
            self.upside += weight * (upside - self.upside);
        }
        let level = if self.lift > 0.0 {
            STEEP / self.upside.exp()
        } else {
            0.0
        };
        let change = gain * (errors - level);
        if change < 0.0 || limits && self.last < FAR {
            self.lift += change;
        }
        Some(errors)
    }

    /// A step of this length and KL divergence was taken.
    pub(crate) fn moved(&mut self, length: f64, kl: f64) {
        self.last = kl;
        let cost = (kl / length.powi(2)).ln();
        if cost.is_finite() {
            self.cost = Some(self.cost.map_or(cost, |old| old + NEW * (cost - old)));
        }
    }
}
