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

impl Intake {
    /// The tokens of `subset` with the weights of `kind`, times `factor(n)`; `divisor` is that of
    /// the whole batch's subset.
    pub fn new(
        subset: Subsets,
        step: &Step,
        supports: &Supports,
        (kind, divisor): (Weights, f64),
        factor: impl Fn(usize) -> f64,
    ) -> Self {
        let base = match kind {
            Weights::RowMean => vec![1.0; supports.len()],
            Weights::TokenMean | Weights::Loss => {
                subset.weights_by(step, supports, kind, &[divisor])
            }
        };
        let weight = |(n, base): (usize, f64)| {
            if subset.holds(n) {
                base * factor(n)
            } else {
                0.0
            }
        };
        let weights = base.into_iter().enumerate().map(weight).collect();
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
