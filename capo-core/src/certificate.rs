//! The quantities of the paper's theorem on monotonic improvement, for accepted steps.

use crate::Step;
use crate::predict::Prediction;
use crate::semantics::Semantics;
use crate::subset::Subsets;
use crate::support::Supports;

/// Quantities of a batch that the theorem "Monotonic improvement under CAPO" needs, in the last
/// layer's model.
///
/// The theorem: let every accepted step have norm at most `r`, `m_H >= omega + M r²` with `M`
/// bounding the Hessian's norm, and `m_F <= delta_F`. Then their mean improves the objective by at
/// least `omega - C sqrt(delta_F)`. This is the proof's condition; the theorem's statement has
/// `½ M r²`. `C = T sqrt((T - 1)(2T - 1) / 3) max |A|` for horizon `T` (undiscounted).
///
/// The condition is sufficient and strict: `C` grows with the square of the horizon, so it rarely
/// holds even when training goes well. It concerns the mean of the subsets' own steps, which is the
/// trainer's step for SGD only.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Certificate {
    /// `r`: largest norm `lr ‖D‖` of an accepted step, over the rows of its tokens and without
    /// weight decay.
    pub step_norm: f64,
    /// `M`: average of a bound on the Hessian's norm over accepted tokens as one subset. The bound
    /// is `|A| ‖h‖² max(‖u‖², 2 max pi (1 - pi))`.
    pub hessian_bound: f64,
    /// `omega`: smallest accepted `m_H` minus `M r²`, reward units; 0 if nothing was accepted.
    pub omega: f64,
    /// `C sqrt(delta_F)`: largest amount by which the improvement may fall short of `omega`, reward
    /// units. `delta_F` is the threshold on `m_F`, or without a threshold the largest accepted
    /// `m_F`.
    pub gap: f64,
}

impl Certificate {
    /// True if the theorem guarantees that the accepted steps improve the objective.
    pub fn holds(&self) -> bool {
        self.omega > 0.0 && self.omega >= self.gap
    }

    /// The certificate of the accepted subsets. A subset whose tokens are all exempt from the test
    /// proposes no step.
    pub(crate) fn of(
        step: &Step,
        supports: &Supports,
        subsets: &Subsets,
        shifts: &Prediction,
        token_mask: &[u8],
        fisher_threshold: Option<f64>,
        semantics: &Semantics,
    ) -> Self {
        let accepted = accepted(supports, subsets, token_mask, semantics);
        let mut norm = 0.0f64;
        let mut least = f64::INFINITY;
        let mut largest_m_f = 0.0f64;
        for shift in (0..subsets.count)
            .filter(|&subset| accepted[subset])
            .map(|subset| shifts.of(subset))
        {
            norm = norm.max(shift.squared_norm);
            least = least.min(shift.m_h);
            largest_m_f = largest_m_f.max(shift.m_f);
        }
        if least == f64::INFINITY {
            return Self::default();
        }
        let kept = subsets.merged(&accepted, &step.batch);
        let averages = kept.averages(step, supports, semantics.curvature_average);
        let inside = (0..supports.len()).filter(|&n| kept.holds(n));
        let hessian_bound = inside
            .map(|n| averages[n] * hessian_bound(supports, n))
            .sum::<f64>();
        let step_norm = step.learning_rate * norm.sqrt();
        let horizon = step.loss.max_completion_length as f64;
        let largest_signal = supports
            .signals
            .iter()
            .fold(0.0f64, |most, signal| most.max(signal.abs()));
        let c = horizon * ((horizon - 1.0) * (2.0 * horizon - 1.0) / 3.0).sqrt() * largest_signal;
        let omega = least - hessian_bound * step_norm * step_norm;
        let delta_f = fisher_threshold
            .filter(|limit| limit.is_finite())
            .unwrap_or(largest_m_f);
        Self {
            step_norm,
            hessian_bound,
            omega,
            gap: c * delta_f.sqrt(),
        }
    }
}

/// `[count]`: true for subsets that were tested and accepted. A rejected subset may have tokens
/// that are kept without a test.
fn accepted(
    supports: &Supports,
    subsets: &Subsets,
    token_mask: &[u8],
    semantics: &Semantics,
) -> Vec<bool> {
    let mut tested = vec![false; subsets.count];
    let mut rejected = vec![false; subsets.count];
    for (n, &subset) in subsets.of.iter().enumerate() {
        tested[subset as usize] |= !semantics.exempts(supports.signals[n]);
        rejected[subset as usize] |= token_mask[supports.position(n)] == 0;
    }
    tested
        .iter()
        .zip(rejected)
        .map(|(&tested, rejected)| tested && !rejected)
        .collect()
}

/// A bound on the norm of `A (u u' - diag(pi) + pi pi') ⊗ h h'`. Both parts are positive
/// semidefinite, so the larger of their norms bounds the difference. Gershgorin's circles bound the
/// second norm.
fn hessian_bound(supports: &Supports, n: usize) -> f64 {
    supports.signals[n].abs()
        * supports.squared_norms[n]
        * supports.slope
        * supports.slope
        * supports.spread(n)
}
