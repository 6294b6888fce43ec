//! Drawing one token from a row of logits.

use anyhow::{Result, ensure};
use rand::Rng;

use super::ops::top_k;

/// How tokens are drawn: temperature first, then top-k, then top-p, as Hugging Face orders them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; 0 takes the largest logit (the lower id among equals) and draws nothing.
    pub temperature: f64,
    /// Number of largest logits kept; 0 keeps all.
    pub top_k: usize,
    /// The fewest most likely tokens that together have at least this probability are kept; 1 keeps all.
    pub top_p: f64,
}

impl Sampling {
    /// The most likely token, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0 };

    /// A temperature below 0 or a `top_p` outside (0, 1] is an error.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.temperature.is_finite() && self.temperature >= 0.0,
            "`temperature` is {}, expected 0 or more (0 is greedy)",
            self.temperature
        );
        ensure!(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "`top_p` is {}, expected more than 0 and at most 1 (1 keeps every token)",
            self.top_p
        );
        Ok(())
    }

    /// Draws a token id from `logits` `[V]` with one number of `rng`, or none when greedy.
    ///
    /// A NaN or infinite largest logit is an error.
    pub(super) fn draw<R: Rng>(&self, logits: &[f32], rng: &mut R, scratch: &mut Scratch) -> Result<u32> {
        let best = argmax(logits);
        ensure!(
            logits[best as usize].is_finite(),
            "the model produced a logit that is not finite (lower the learning rate)"
        );
        if self.temperature == 0.0 {
            return Ok(best);
        }
        let uniform = crate::rng::uniform(rng);
        let largest = f64::from(logits[best as usize]);
        let weight = |id: u32| ((f64::from(logits[id as usize]) - largest) / self.temperature).exp();
        let limited = self.top_k > 0 && self.top_k < logits.len();
        if !limited && self.top_p == 1.0 {
            scratch.weights.clear();
            scratch.weights.extend((0..logits.len() as u32).map(weight));
            return Ok(pick(&scratch.weights, uniform) as u32);
        }
        let k = if limited { self.top_k } else { logits.len() };
        let ids = top_k(logits, k, &mut scratch.order);
        scratch.weights.clear();
        scratch.weights.extend(ids.iter().map(|id| weight(*id)));
        let kept = nucleus(&scratch.weights, self.top_p);
        Ok(ids[pick(&scratch.weights[..kept], uniform)])
    }
}

/// Buffers reused from row to row.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    order: Vec<u32>,
    weights: Vec<f64>,
}

/// The index of the largest logit, the lowest among equals; NaN counts as largest.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return id as u32;
        }
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// How many of the descending `weights` reach the share `top_p` of their sum; at least one.
fn nucleus(weights: &[f64], top_p: f64) -> usize {
    if top_p == 1.0 {
        return weights.len();
    }
    let limit = top_p * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= limit {
            return index + 1;
        }
    }
    weights.len()
}

/// Inverts the cumulative distribution of `weights` at `uniform` in [0, 1); never an index of weight 0.
fn pick(weights: &[f64], uniform: f64) -> usize {
    let target = uniform * weights.iter().sum::<f64>();
    let (mut sum, mut last) = (0.0, 0);
    for (index, weight) in weights.iter().enumerate() {
        sum += weight;
        if *weight > 0.0 {
            last = index;
            if sum > target {
                return index;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nucleus_is_the_smallest_set_that_reaches_its_share() {
        let weights = [0.5, 0.3, 0.15, 0.05];
        assert_eq!(nucleus(&weights, 0.4), 1);
        assert_eq!(nucleus(&weights, 0.5), 1);
        assert_eq!(nucleus(&weights, 0.51), 2);
        assert_eq!(nucleus(&weights, 0.8), 2);
        assert_eq!(nucleus(&weights, 1.0), 4);
    }

    #[test]
    fn picking_inverts_the_cumulative_distribution() {
        let weights = [1.0, 0.0, 2.0, 1.0];
        assert_eq!(pick(&weights, 0.0), 0);
        assert_eq!(pick(&weights, 0.2499), 0);
        assert_eq!(pick(&weights, 0.25), 2);
        assert_eq!(pick(&weights, 0.75), 3);
        assert_eq!(pick(&weights, 1.0 - f64::EPSILON / 2.0), 3);
        assert_eq!(pick(&[1.0, 0.0], 1.0 - f64::EPSILON / 2.0), 0);
    }

    #[test]
    fn the_lower_id_wins_among_equals() {
        let mut order = Vec::new();
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0, 3.0], 2, &mut order), [1, 2]);
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0, 3.0], 9, &mut order), [1, 2, 4, 3, 0]);
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    }
}
