//! Subsets of a batch's tokens: what one proposed step is made of, and its shifts.

use std::ops::Range;

use crate::backend::cpu;
use crate::moments::Moments;
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
    pub(crate) fn shifts(self, step: &Step, supports: &Supports, moments: &Moments) -> Vec<Shift> {
        match self {
            Self::Token => token_shifts(step, supports, moments),
            _ => vec![subset_shift(step, supports, moments); supports.len()],
        }
    }
}

/// Shifts of the step proposed by the mean gradient of all tokens in `supports`; 0 if there are none.
///
/// With `w = 1 / N`: `g = sum w A u ⊗ h`, `m_F = sum w ½ lr² s²`, `m_H = sum w (lr A s + ½ lr² A (s² - q))`.
pub(crate) fn subset_shift(step: &Step, supports: &Supports, moments: &Moments) -> Shift {
    let weight = 1.0 / supports.len() as f64;
    let coefficients = supports.coefficients(step.advantages, weight);
    let adam = step.optimizer.adam(moments.steps);
    let v = cpu::subset_projections(&step.batch, &supports.by_row(), &coefficients, moments, adam.as_ref());
    shifts(step, supports, project(supports, &v)).fold(Shift::default(), |total, shift| Shift {
        m_f: total.m_f + weight * shift.m_f,
        m_h: total.m_h + weight * shift.m_h,
    })
}

/// Shifts of each token along the direction of its own gradient, `[N]`.
fn token_shifts(step: &Step, supports: &Supports, moments: &Moments) -> Vec<Shift> {
    let Some(adam) = step.optimizer.adam(moments.steps) else {
        let norms = cpu::squared_norms(&step.batch, &supports.tokens);
        let along = |(n, norm): (usize, f64)| {
            let (pairs, advantage) = (supports.pairs(n), f64::from(step.advantages[supports.tokens[n]]));
            Curvature::along_gradient(&supports.pi[pairs.clone()], &supports.u[pairs], advantage, norm)
        };
        return shifts(step, supports, norms.into_iter().enumerate().map(along)).collect();
    };
    let coefficients = supports.coefficients(step.advantages, 1.0);
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
