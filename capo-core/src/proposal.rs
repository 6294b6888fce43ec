//! The step that each subset of tokens proposes, and its shifts.

use crate::backend::cpu;
use crate::effect::{Effect, HostEffects};
use crate::optimizer::Adam;
use crate::semantics::{EmptyState, ObjectiveShift, PolicyShift, Semantics};
use crate::shift::{Reaction, Shift};
use crate::store::Source;
use crate::subset::Subsets;
use crate::support::{Pairs, Supports};
use crate::{Arrays, Error, Step, cuda};

/// How a model turns gradients into proposals.
pub(crate) struct Proposer<'a> {
    pub step: &'a Step<'a>,
    pub supports: &'a Supports,
    pub semantics: &'a Semantics,
    pub source: Source<'a>,
    pub threads: usize,
}

impl Proposer<'_> {
    /// Shifts of the step that each subset proposes, `[count]`; 0 for an empty one.
    ///
    /// With token weights `w` in the gradient and `y` in the averages, both `1 / N` in the paper: `g = sum w A u ⊗ h`,
    /// `m_F = sum y ½ lr² s²`, `m_H = lr g . D + sum y ½ lr² A (s² - q)`.
    pub fn shifts(&self, subsets: &Subsets) -> Result<Vec<Shift>, Error> {
        let Self { step, supports, semantics, .. } = self;
        let weights = subsets.gradient_weights(step, supports, semantics.subset_weights);
        let averages = subsets.averages(step, supports, semantics.curvature_average);
        let effects = self.effects(subsets, &weights)?;
        let mut shifts = vec![Shift::default(); subsets.count];
        let mut slopes = vec![0.0; subsets.count];
        for (n, effect) in effects.iter().enumerate() {
            let Some(subset) = subsets.index(n) else { continue };
            slopes[subset] += effect.slope;
            shifts[subset].squared_norm += effect.squared_norm;
        }
        for (shift, slope) in shifts.iter_mut().zip(slopes) {
            self.start(shift, step.learning_rate * slope);
        }
        for (n, effect) in effects.iter().enumerate() {
            if let Some(subset) = subsets.index(n) {
                self.add(&mut shifts[subset], effect.reaction, supports.signals[n], averages[n]);
            }
        }
        Ok(shifts)
    }

    /// What the proposals of their subsets do to all tokens, `[N]`, computed where the batch lies.
    fn effects(&self, subsets: &Subsets, weights: &[f64]) -> Result<Vec<Effect>, Error> {
        let Self { step, supports, threads, .. } = self;
        let (pairs, arrays) = match (&supports.pairs, &step.batch.arrays) {
            (Pairs::Host(pairs), Arrays::Host(arrays)) => (pairs, arrays),
            (Pairs::Cuda(pairs), _) => return cuda::effects(self, pairs, subsets, weights),
            (Pairs::Host(_), Arrays::Cuda(_)) => unreachable!("pairs are collected where their batch lies"),
        };
        let (hidden, width, positions) = (arrays.hidden, step.batch.width, &supports.features[..]);
        let features = cpu::Features { hidden, width, positions, threads: *threads };
        let effects = HostEffects { proposer: self, pairs, features, source: &self.source.on_host()? };
        Ok(if subsets.single { effects.of_tokens(weights) } else { effects.of_subsets(subsets, weights) })
    }

    /// Adds one token's part to its subset's shift.
    fn add(&self, shift: &mut Shift, reaction: Reaction, signal: f64, weight: f64) {
        let Reaction { s, q, kl, gain } = reaction;
        let rate = self.rate();
        let half = 0.5 * rate * rate;
        shift.kl += weight * kl;
        shift.surrogate += weight * signal * gain;
        shift.m_f += weight
            * match self.semantics.policy_shift {
                PolicyShift::Sampled => half * s * s,
                PolicyShift::Expected => half * q,
                PolicyShift::Kl => kl,
            };
        shift.m_h += weight
            * match self.semantics.objective_shift {
                ObjectiveShift::Quadratic => half * signal * (s * s - q),
                ObjectiveShift::Surrogate => signal * gain,
            };
    }

    /// Begins a shift with its first-order term.
    fn start(&self, shift: &mut Shift, first_order: f64) {
        shift.first_order = first_order;
        if self.semantics.objective_shift == ObjectiveShift::Quadratic {
            shift.m_h = first_order;
        }
    }

    /// How far a projection of 1 moves a logit in the policy.
    pub fn rate(&self) -> f64 {
        self.step.learning_rate * self.supports.slope
    }

    /// Adam as it proposes; `None` where the direction is the gradient.
    pub fn adam(&self) -> Option<Adam> {
        let raw = self.semantics.empty_state == EmptyState::RawGradient && self.source.is_empty();
        let adam = self.step.optimizer.adam(self.source.steps(), self.semantics.untouched_rows);
        adam.filter(|_| !raw)
    }
}
