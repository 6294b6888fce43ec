//! What the checks give to a component: batches, or rollouts where it is a reward.

use capo_plugin::testing::{Fixture, RolloutFixture};

/// What a component sees of one step.
#[derive(Debug, Clone)]
pub enum Input {
    /// For advantages, objectives and masks.
    Batch(Box<Fixture>),
    /// For rewards.
    Rollout(RolloutFixture),
}

impl From<Fixture> for Input {
    fn from(batch: Fixture) -> Self {
        Self::Batch(Box::new(batch))
    }
}

impl Input {
    /// The same completions with their groups in another order: group `g` of the result is group `order[g]`.
    #[must_use]
    pub fn regrouped(&self, order: &[usize]) -> Self {
        match self {
            Self::Batch(batch) => batch.regrouped(order).into(),
            Self::Rollout(rollout) => Self::Rollout(rollout.regrouped(order)),
        }
    }

    /// Its shape for sentences.
    #[must_use]
    pub fn shape(&self) -> String {
        match self {
            Self::Batch(batch) => {
                let dims = batch.batch().dims;
                format!("B = {}, T = {}, G = {}", dims.completions, dims.tokens, dims.group_size)
            }
            Self::Rollout(rollout) => {
                let rollout = rollout.rollout();
                format!("B = {}, G = {}", rollout.completions.len(), rollout.group_size)
            }
        }
    }
}
