//! How the gradient of a subset of tokens becomes the step that it proposes.

use crate::Step;
use crate::optimizer::Adam;
use crate::semantics::{EmptyState, Semantics};
use crate::store::Source;
use crate::support::Supports;

/// How a model turns gradients into proposals.
pub(crate) struct Proposer<'a> {
    pub step: &'a Step<'a>,
    pub supports: &'a Supports,
    pub semantics: &'a Semantics,
    pub source: Source<'a>,
    pub threads: usize,
}

impl Proposer<'_> {
    /// How far a projection of 1 moves a logit in the policy.
    pub fn rate(&self) -> f64 {
        self.step.learning_rate * self.supports.slope
    }

    /// Adam as it proposes; `None` where the direction is the gradient.
    pub fn adam(&self) -> Option<Adam> {
        let raw = self.semantics.empty_state == EmptyState::RawGradient && self.source.is_empty();
        let adam = self
            .step
            .optimizer
            .adam(self.source.steps(), self.semantics.untouched_rows);
        adam.filter(|_| !raw)
    }
}
