//! The learning rate that finds itself, as a share of the one that was set.
//!
//! Adam's first step moves each weight by the whole rate, however noisy its gradient is, so that
//! its KL divergence is a measure of the rate. The steps after it are another one, and the rate is
//! the higher of what both tell ([`told`]).
//!
//! The rate then follows what the run says ([`listening`]). A run does not say how long it will be,
//! and a longer one needs a smaller rate, so that the rate falls after a while.
//!
//! The rate that is found is a limit: a schedule that is below it is left as it is.

mod listening;
mod told;

use crate::slope::Slope;
use crate::target::scale;
use listening::Listening;
use told::Told;

/// So many steps tell the rate, of those that have an advantage and move the policy.
pub(crate) const FIRST: u64 = 6;
/// KL divergence of Adam's first step at a good rate, as a share of the policy's entropy: a policy
/// that is less certain may move further.
const ADAMS_FIRST: f64 = 0.008;
/// The same of the steps after it, which are shorter, because gradients partly cancel in Adam's
/// mean.
const LATER: f64 = 0.003;
/// The entropy is no less than this, nats per completion token: some trainers give no
/// log-probabilities.
const LEAST_ENTROPY: f64 = 0.05;
/// And no more than this: SmolLM2 has one good rate on tasks where it has 1.0, 1.8 and 3.3 nats.
const MOST_ENTROPY: f64 = 1.0;
/// The logarithm of 1.5: a rate of up to so many times the one that was told is taken whole, until
/// slopes or the number of steps lower the limit. Seeds told a rate within a fifth of their mean.
const WHOLE: f64 = 0.405_465_108_108_164_4;
/// A step below this share of a good step's divergence is rounding and moved nothing: nothing was
/// earned yet. It tells nothing.
const STILL: f64 = 1e-6;
/// A first step without an advantage that is shorter, as a share of the rate, had no gradient:
/// weight decay alone moved the weights. Adam's first gradient has 0.3 to 3, and less where masks
/// and weights shorten the first moment and not the second.
const NO_GRADIENT: f64 = 0.1;
/// So many steps may have the whole rate that was told. Then the highest rate falls with the root
/// of the number of steps: late in a run the policy gains more from short steps, whose noise
/// averages out.
const STEADY: u64 = 50;
/// No step has more than so many times the mean KL divergence of those before it.
const SPIKE: f64 = 10.0;

/// A step that the optimizer proposes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Its KL divergence, and the policy's entropy; nats per completion token.
    pub kl: f64,
    pub entropy: f64,
    pub rate: f64,
    /// Its length: the Euclidean norm over all weights.
    pub length: f64,
    /// How far it moves the weights, as a share of the learning rate (root mean square); it matters
    /// for the first step alone, where Adam's is 1.
    pub reach: f64,
    /// Whether a completion of its batch has an advantage. Without one Adam's mean alone moves the
    /// policy, less far with each step.
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
    told: Told,
    /// True if the rate that was set is no more than 1.5 times the one that the first steps told.
    /// Steps are then whole.
    whole: bool,
    listening: Listening,
    /// Sum of the KL divergences of what was taken of the steps that are evidence and moved the
    /// policy, and their number.
    kl: f64,
    steps: u64,
    /// Sum over the first steps of ln(divergence by the square law / divergence) of the whole step.
    bend: f64,
    /// Highest learning rate since the first of them, to which the share refers.
    rate: f64,
    /// Whether a batch had an advantage. Some trainers give none, so that their steps tell the rate
    /// all the same.
    earned: bool,
}

impl Search {
    /// Hears how fast the loss of a step's batch falls along the steps before it; the coming step
    /// has this learning rate. Returns the slope in standard errors.
    pub(crate) fn hear(&mut self, slope: Slope, rate: f64) -> Option<f64> {
        self.refer_to(rate);
        let limits = self.left(rate) < 1.0;
        self.listening.hear(slope, limits)
    }

    /// The share of `step`, by a guess, that is to be measured too before it is taken; `None` if
    /// `step` is taken whole or tells nothing. For one of the first steps.
    pub(crate) fn part(&mut self, step: Step) -> Option<f64> {
        self.refer_to(step.rate);
        let told = self.told.and(self.log_told_by(step, self.square(step.kl)));
        let share = self.limit(told.log()) / step.rate;
        let tells = self.begins() && self.counts(step) && self.moves(step);
        (tells && share > 0.0 && share < (-WHOLE).exp()).then_some(share)
    }

    /// How much of `step` is taken; its numbers are of the whole step. If a part was measured, no
    /// more than that.
    pub(crate) fn take(&mut self, step: Step, part: Option<Part>) -> f64 {
        self.refer_to(step.rate);
        let (kl, limit) = match part {
            Some(Part { share, kl }) => (kl / share.powi(2), share),
            None => (self.square(step.kl), 1.0),
        };
        if !kl.is_finite() {
            return 0.0;
        }
        self.earned |= step.earns;
        let is_first = self.has_not_begun();
        let counts = self.counts(step);
        if !self.moves(Step { kl, ..step }) {
            return self.left(step.rate).min(limit);
        }
        if self.begins() && counts {
            self.told = self.told.and(self.log_told_by(step, kl));
            self.bend += (kl / step.kl).ln();
        }
        let share = self.left(step.rate).min(limit);
        let taken = share * share * kl;
        let most = if is_first {
            f64::INFINITY
        } else {
            SPIKE * self.kl / self.steps as f64
        };
        if counts && taken > 0.0 {
            self.kl += taken.min(most);
            self.listening.moved(share * step.length, taken);
            self.steps += 1;
            if self.steps == FIRST {
                self.whole = self.log() + self.listening.lift >= -WHOLE;
            }
        }
        share * scale(most, taken)
    }

    /// The logarithm of the rate that `step`, of divergence `kl` by the square law, tells, divided
    /// by the highest one so far.
    fn log_told_by(&self, step: Step, kl: f64) -> f64 {
        // A schedule may have lowered the rate since the highest one.
        0.5 * (self.good(step) / kl).ln() + (step.rate / self.rate).ln()
    }

    /// The logarithm of the highest rate that the first steps leave, divided by the highest one so
    /// far.
    fn log(&self) -> f64 {
        self.told.log() + if self.whole { WHOLE } else { 0.0 }
    }

    /// Divergence by the square law of a whole step of divergence `kl`: as the first steps had it,
    /// or by a guess.
    fn square(&self, kl: f64) -> f64 {
        if self.has_not_begun() {
            guessed_square(kl)
        } else {
            kl * (self.bend / self.steps.min(FIRST) as f64).exp()
        }
    }

    /// KL divergence of a good step in the place of `step`, nats per completion token.
    fn good(&self, step: Step) -> f64 {
        let share = if self.has_not_begun() {
            ADAMS_FIRST * step.reach.powi(2)
        } else {
            LATER
        };
        share * counted(step.entropy)
    }

    /// True if `step` is evidence: it has an advantage, or nobody gives any.
    fn counts(&self, step: Step) -> bool {
        step.earns || !self.earned
    }

    /// True if `step` moves the policy, by more than rounding and for another reason than weight
    /// decay.
    fn moves(&self, step: Step) -> bool {
        let has_gradient =
            step.reach > if step.earns { 0.0 } else { NO_GRADIENT } && step.reach.is_finite();
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

    /// The highest learning rate of a step, where the first ones told `log`.
    fn limit(&self, log: f64) -> f64 {
        let late = (STEADY as f64 / self.steps as f64).sqrt().min(1.0);
        (log + self.listening.lift).exp() * late * self.rate
    }

    /// How much is left of a step at `rate` that is no spike.
    pub(crate) fn left(&self, rate: f64) -> f64 {
        if rate == 0.0 {
            return 1.0;
        }
        let share = self.limit(self.log()) / rate;
        let whole = if self.begins() { (-WHOLE).exp() } else { 1.0 };
        if share >= whole { 1.0 } else { share }
    }

    /// The learning rate that was found, once the first steps are taken: the highest one of the
    /// coming step.
    pub(crate) fn found(&self) -> Option<f64> {
        (!self.begins()).then(|| self.limit(self.log()).min(self.rate))
    }

    /// Keeps `share · rate` where a warm-up raises the rate: the search is for a learning rate.
    /// Before the first step that tells one there is no share.
    fn refer_to(&mut self, rate: f64) {
        if rate <= self.rate && !self.has_not_begun() {
            return;
        }
        if !self.has_not_begun() {
            let was_whole = self.log() + self.listening.lift >= 0.0;
            self.told = self.told.times((self.rate / rate).ln());
            if was_whole && self.log() + self.listening.lift < 0.0 {
                // It is more than half again what was told now.
                self.whole = false;
            }
        }
        self.rate = rate;
    }

    /// The state as text.
    pub(crate) fn save(&self) -> String {
        let Listening {
            lift,
            heard,
            cost,
            last,
            upside,
        } = self.listening;
        let Told {
            first,
            later,
            count,
        } = self.told;
        let numbers = [
            first, later, self.kl, self.rate, self.bend, lift, last, upside,
        ]
        .map(written);
        let cost = cost.map_or("none".to_owned(), written);
        format!(
            "{} {cost} {count} {heard} {} {} {}",
            numbers.join(" "),
            self.steps,
            self.whole,
            self.earned
        )
    }

    /// The state that `text` holds; `None` for text that `save` did not write.
    pub(crate) fn load(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[
            first,
            later,
            kl,
            rate,
            bend,
            lift,
            last,
            upside,
            cost,
            count,
            heard,
            steps,
            whole,
            earned,
        ] = words.as_slice()
        else {
            return None;
        };
        let cost = match cost {
            "none" => None,
            bits => Some(number(bits)?),
        };
        Some(Self {
            told: Told {
                first: number(first)?,
                later: number(later)?,
                count: count.parse().ok()?,
            },
            whole: whole.parse().ok()?,
            listening: Listening {
                lift: number(lift)?,
                heard: heard.parse().ok()?,
                cost,
                last: number(last)?,
                upside: number(upside)?,
            },
            kl: number(kl)?,
            rate: number(rate)?,
            bend: number(bend)?,
            steps: steps.parse().ok()?,
            earned: earned.parse().ok()?,
        })
    }
}

/// The bits of a number, as text.
fn written(number: f64) -> String {
    format!("{:016x}", number.to_bits())
}

/// The finite number whose bits [`written`] wrote.
fn number(bits: &str) -> Option<f64> {
    u64::from_str_radix(bits, 16)
        .ok()
        .map(f64::from_bits)
        .filter(|number| number.is_finite())
}

/// The entropy as far as it counts.
fn counted(entropy: f64) -> f64 {
    // `max` drops a number that is none.
    entropy
        .max(LEAST_ENTROPY)
        .clamp(LEAST_ENTROPY, MOST_ENTROPY)
}

/// A guess at the divergence by the square law of a step of divergence `kl`. Steps near a nat and
/// above move logits in proportion, so that a part of them may have more than that law says.
/// Measured steps of 0.1 to 4 nats had it within a factor of four on two tasks; on a third, steps
/// of 1.7 nats obeyed the law.
fn guessed_square(kl: f64) -> f64 {
    kl * (1.0 + kl).powf(1.5)
}

#[cfg(test)]
mod tests;
