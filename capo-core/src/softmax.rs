//! The distribution that the model uses.

use crate::Step;
use crate::semantics::{OutsideAction, Probabilities, Semantics, Temperature};

/// Rule for a token's probabilities from its logits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Softmax {
    /// Divisor of the logits.
    pub temperature: f64,
    /// True for probabilities over the whole vocabulary, by its logsumexp.
    pub full: bool,
    /// Number of the K kept logits in the distribution.
    pub columns: usize,
    /// True if a sampled token outside these logits is added.
    pub add_action: bool,
}

impl Softmax {
    pub fn new(step: &Step, semantics: &Semantics) -> Self {
        let temperature = match semantics.temperature {
            Temperature::Sampling => f64::from(step.policy.temperature),
            Temperature::One => 1.0,
            Temperature::Loss => f64::from(step.loss.temperature),
        };
        let k = step.batch.k;
        let full = semantics.probabilities == Probabilities::Full;
        let columns = if full {
            k
        } else {
            step.policy.top_k.map_or(k, |limit| limit.min(k))
        };
        Self {
            temperature,
            full,
            columns,
            add_action: semantics.outside_action == OutsideAction::Add,
        }
    }

    /// Replaces logits by probabilities that sum to 1.
    pub fn normalise(&self, logits: &mut [f64]) {
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logits
            .iter_mut()
            .for_each(|x| *x = ((*x - largest) / self.temperature).exp());
        scale_to_one(logits);
    }

    /// Replaces logits by probabilities over a vocabulary with this `logsumexp`; returns the
    /// probability of the other rows.
    pub fn share(&self, logits: &mut [f64], logsumexp: f64) -> f64 {
        logits
            .iter_mut()
            .for_each(|x| *x = *x / self.temperature - logsumexp);
        // Except for rounding, a logsumexp is at least the largest logit. The rounding may be large
        // if the logits are.
        let excess = logits.iter().fold(0.0, |most: f64, x| most.max(*x));
        logits.iter_mut().for_each(|x| *x = (*x - excess).exp());
        let tail = 1.0 - logits.iter().sum::<f64>();
        if tail < 0.0 {
            // The rows hold the whole probability.
            scale_to_one(logits);
        }
        tail.max(0.0)
    }
}

fn scale_to_one(weights: &mut [f64]) {
    let total: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|x| *x /= total);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softmax(temperature: f64) -> Softmax {
        Softmax {
            temperature,
            full: false,
            columns: 4,
            add_action: true,
        }
    }

    #[test]
    fn softmax_is_normalised_at_any_temperature_and_scale() {
        for temperature in [1e-30, 0.9, 1.0, 1e30] {
            let mut x = [3.0, 1.0, -2.0, -3e38];
            softmax(temperature).normalise(&mut x);
            assert!(
                (x.iter().sum::<f64>() - 1.0).abs() < 1e-15,
                "{temperature}: {x:?}"
            );
            assert!(x.windows(2).all(|w| w[0] >= w[1]));
        }
        let mut x = [2.0, 2.0 - 0.9 * 3.0_f64.ln()];
        softmax(0.9).normalise(&mut x);
        assert!((x[0] - 0.75).abs() < 1e-7, "{x:?}");
    }

    #[test]
    fn the_tail_is_the_probability_of_rows_that_are_not_kept() {
        let mut x = [1.0, 0.0];
        let tail = softmax(2.0).share(&mut x, (0.5f64.exp() + 1.0 + 2.0).ln());
        let total = 0.5f64.exp() + 3.0;
        assert!((x[0] - 0.5f64.exp() / total).abs() < 1e-15 && (tail - 2.0 / total).abs() < 1e-15);
        let mut x = [1.0, 0.0];
        assert_eq!(softmax(1.0).share(&mut x, 1.0), 0.0);
        assert!((x[0] + x[1] - 1.0).abs() < 1e-15);
        let mut x = [3e30, 2e30];
        assert_eq!((softmax(1.0).share(&mut x, 1e30), x), (0.0, [1.0, 0.0]));
    }
}
