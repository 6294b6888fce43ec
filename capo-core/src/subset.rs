//! Subsets of a batch's tokens: what one proposed step is made of, and its shifts.

use std::ops::Range;

use crate::backend::cpu;
use crate::moments::Moments;
use crate::optimizer::Adam;
use crate::semantics::{BatchAverage, EmptyState, Semantics};
use crate::shift::{Curvature, Shift};
use crate::support::Supports;
use crate::{LastLayer, Step};

/// Which tokens make one proposal and are accepted or rejected as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Granularity {
    /// Every token is a subset of its own.
    #[default]
    Token,
    /// The tokens of a completion.
    Completion,
    /// The tokens of G consecutive completions, `LastLayer::group_size`.
    Group,
    /// All tokens of the batch.
    Batch,
}

impl Granularity {
    /// Flat positions `b * T + t` of the subsets, in order; single tokens are worked on together, as one range.
    pub(crate) fn spans(self, batch: &LastLayer) -> impl Iterator<Item = Range<usize>> + use<> {
        let positions = batch.completions * batch.tokens;
        let span = match self {
            Self::Completion => batch.tokens,
            Self::Group => batch.tokens.saturating_mul(batch.group_size),
            Self::Token | Self::Batch => positions,
        };
        (0..positions).step_by(span.max(1)).map(move |start| start..start + span)
    }

    /// Shifts of the step that each token of a span belongs to, `[N]`.
    pub(crate) fn shifts(
        self,
        step: &Step,
        supports: &Supports,
        moments: &Moments,
        semantics: &Semantics,
    ) -> Vec<Shift> {
        match self {
            Self::Token => token_shifts(step, supports, moments, semantics),
            _ => vec![subset_shift(step, supports, moments, semantics); supports.len()],
        }
    }
}

/// Shifts of the step proposed by the gradient of all tokens in `supports`; 0 if there are none.
///
/// With pair weights `w` and token weights `y`, both `1 / N` in the paper: `g = sum w A u ⊗ h`, `m_F = sum y ½ lr² s²`,
/// `m_H = lr g . D + sum y ½ lr² A (s² - q)`, where `g . D = sum y A slope` with `slope = sum (w / y) u v` over a token's pairs.
pub(crate) fn subset_shift(step: &Step, supports: &Supports, moments: &Moments, semantics: &Semantics) -> Shift {
    let by_row = supports.by_row();
    let weights = supports.weights(semantics.weights, &by_row);
    let coefficients = supports.coefficients(step.advantages, &weights);
    let adam = proposer(step, moments, semantics);
    let v = cpu::subset_projections(&step.batch, &by_row, &coefficients, moments, adam.as_ref());
    let averages = averages(&step.batch, supports, semantics.batch_average);
    let curvatures = project(supports, &v).enumerate().map(|(n, curvature)| {
        let weighed = |pair: usize| weights[pair] / averages[n] * (supports.u[pair] * v[pair]);
        Curvature { slope: supports.pairs(n).map(weighed).sum(), ..curvature }
    });
    shifts(step, supports, curvatures).zip(&averages).fold(Shift::default(), |total, (shift, weight)| Shift {
        m_f: total.m_f + weight * shift.m_f,
        m_h: total.m_h + weight * shift.m_h,
    })
}

/// Weight of each token in the averages over a subset, `[N]`.
fn averages(batch: &LastLayer, supports: &Supports, average: BatchAverage) -> Vec<f64> {
    let tokens = &supports.tokens;
    if average == BatchAverage::TokenMean {
        return vec![1.0 / tokens.len() as f64; tokens.len()];
    }
    let completions = supports.span.len() / batch.tokens.max(1);
    let same = |a: &usize, b: &usize| a / batch.tokens == b / batch.tokens;
    let weights = |own: &[usize]| vec![1.0 / (completions as f64 * own.len() as f64); own.len()];
    tokens.chunk_by(same).flat_map(weights).collect()
}

/// Adam as it proposes; `None` where the direction is the gradient.
fn proposer(step: &Step, moments: &Moments, semantics: &Semantics) -> Option<Adam> {
    let raw = semantics.empty_state == EmptyState::RawGradient && moments.rows.is_empty();
    if raw { None } else { step.optimizer.adam(moments.steps, semantics.untouched_rows) }
}

/// Shifts of each token along the direction of its own gradient, `[N]`.
fn token_shifts(step: &Step, supports: &Supports, moments: &Moments, semantics: &Semantics) -> Vec<Shift> {
    let Some(adam) = proposer(step, moments, semantics) else {
        let norms = cpu::squared_norms(&step.batch, &supports.features);
        let along = |(n, norm): (usize, f64)| {
            let (pairs, advantage) = (supports.pairs(n), f64::from(step.advantages[supports.tokens[n]]));
            Curvature::along_gradient(&supports.pi[pairs.clone()], &supports.u[pairs], advantage, norm)
        };
        return shifts(step, supports, norms.into_iter().enumerate().map(along)).collect();
    };
    let coefficients = supports.coefficients(step.advantages, &vec![1.0; supports.rows.len()]);
    let v = cpu::token_projections(&step.batch, &supports.by_row(), &coefficients, moments, &adam);
    shifts(step, supports, project(supports, &v)).collect()
}

/// Curvature of each token from the projections of its pairs, `[N]` from `[P]`.
fn project(supports: &Supports, v: &[f64]) -> impl Iterator<Item = Curvature> {
    (0..supports.len()).map(|n| {
        let pairs = supports.pairs(n);
        Curvature::of(&supports.pi[pairs.clone()], &supports.u[pairs.clone()], &v[pairs])
    })
}

/// Shift of each token from its curvature, `[N]` from `[N]`.
fn shifts(
    step: &Step,
    supports: &Supports,
    curvatures: impl Iterator<Item = Curvature>,
) -> impl Iterator<Item = Shift> {
    let advantages = supports.tokens.iter().map(|&token| f64::from(step.advantages[token]));
    curvatures.zip(advantages).map(|(curvature, advantage)| curvature.shift(step.learning_rate, advantage))
}
