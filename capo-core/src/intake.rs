//! The gradients that a step adds to the moments.

use crate::semantics::Weights;
use crate::step::Step;
use crate::subset::Subsets;
use crate::support::Supports;

/// A gradient for the moments: its tokens and their weights.
#[derive(Debug)]
pub(crate) struct Intake {
    /// The tokens.
    pub subset: Subsets,
    /// `[N]`: weight of each token's gradient; 0 outside the subset. [`Weights::RowMean`] also
    /// divides it by the number of the subset's tokens in each row.
    pub weights: Vec<f64>,
}

/// The gradients that one step adds.
pub(crate) struct Taken<'a> {
    /// The gradient of the kept tokens.
    pub kept: &'a Intake,
    /// The gradient with no token rejected, if the second moment includes rejected tokens.
    pub everything: Option<&'a Intake>,
    /// Weights of tokens and rows in both gradients.
    pub kind: Weights,
}

/// The share of a token in its subset's gradient.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub kind: Weights,
    /// Divisor of the weights, for the subset of the whole batch.
    pub divisor: f64,
}

impl Intake {
    /// The tokens of `subset`, each with its share times `factor(n)`.
    pub fn new(
        subset: Subsets,
        step: &Step,
        supports: &Supports,
        share: Share,
        factor: impl Fn(usize) -> f64,
    ) -> Self {
        let Share { kind, divisor } = share;
        let base = match kind {
            Weights::RowMean => vec![1.0; supports.len()],
            Weights::TokenMean | Weights::Loss => {
                subset.weights_by(step, supports, kind, &[divisor])
            }
        };
        let mut weights = base;
        for (n, weight) in weights.iter_mut().enumerate() {
            *weight = if subset.holds(n) {
                *weight * factor(n)
            } else {
                0.0
            };
        }
        Self { subset, weights }
    }

    /// The first `held` of `count` tokens, with weight 1 each.
    pub fn ones(count: usize, held: usize) -> Self {
        let weights = (0..count).map(|n| f64::from(u8::from(n < held))).collect();
        Self {
            subset: Subsets::first(held, count),
            weights,
        }
    }
}
