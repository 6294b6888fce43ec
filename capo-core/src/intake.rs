//! The gradients that a step takes into the moments.

use crate::semantics::Weights;
use crate::step::Step;
use crate::subset::Subsets;
use crate::support::Supports;

/// A gradient that moments take in: its tokens, and what each weighs.
#[derive(Debug)]
pub(crate) struct Intake {
    /// The tokens.
    pub subset: Subsets,
    /// Weight of each token's gradient, `[N]`; 0 where it is not in the subset. With [`Weights::RowMean`] it is divided as well by the
    /// number of the subset's tokens in each row.
    pub weights: Vec<f64>,
}

/// The gradients that one step takes in.
pub(crate) struct Taken<'a> {
    /// The gradient of what was kept.
    pub kept: &'a Intake,
    /// That with nothing rejected, where the second moment takes in what was.
    pub everything: Option<&'a Intake>,
    /// How tokens and rows weigh in both.
    pub kind: Weights,
}

impl Intake {
    /// The tokens of `subset`, which weigh what `kind` says times `factor(n)`; `divisor` is that of the whole batch's subset.
    pub fn new(
        subset: Subsets,
        step: &Step,
        supports: &Supports,
        (kind, divisor): (Weights, f64),
        factor: impl Fn(usize) -> f64,
    ) -> Self {
        let base = match kind {
            Weights::RowMean => vec![1.0; supports.len()],
            Weights::TokenMean | Weights::Loss => subset.weights_by(step, supports, kind, &[divisor]),
        };
        let weight = |(n, base): (usize, f64)| if subset.holds(n) { base * factor(n) } else { 0.0 };
        let weights = base.into_iter().enumerate().map(weight).collect();
        Self { subset, weights }
    }

    /// The first `held` of `count` tokens, each of weight 1.
    pub fn ones(count: usize, held: usize) -> Self {
        let weights = (0..count).map(|n| f64::from(u8::from(n < held))).collect();
        Self { subset: Subsets::first(held, count), weights }
    }
}
