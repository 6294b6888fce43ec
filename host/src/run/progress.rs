//! How far a run has come, and what of it can be saved.

use serde::{Deserialize, Serialize};

/// How far a run has come: what a checkpoint says besides weights and components' state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Optimizer steps done, skipped ones included.
    pub step: u64,
    /// Training prompts consumed.
    pub prompts: u64,
    /// Prompt and completion tokens processed.
    pub num_tokens: u64,
    /// Completion tokens that reached the masks.
    pub completion_tokens: u64,
    /// Of those, rejected ones.
    pub rejected_tokens: u64,
    /// Steps without an update.
    pub skipped_steps: u64,
    /// Held-out accuracy before step 0.
    pub accuracy_before: Option<f64>,
    /// The newest held-out accuracy since.
    pub accuracy: Option<f64>,
    /// The mean reward of held-out prompts before step 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward_before: Option<f64>,
    /// The newest since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward: Option<f64>,
    /// The best evaluation, where a metric says which it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

impl Progress {
    /// The share of completion tokens so far that masks rejected.
    pub fn rejected_share(&self) -> f64 {
        self.rejected_tokens as f64 / self.completion_tokens.max(1) as f64
    }
}

/// The evaluation with the best value so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// After which step.
    pub step: u64,
    /// The value of `train.metric_for_best_model`.
    pub value: f64,
    /// Evaluations since the last one that improved by more than `train.early_stopping_threshold`.
    pub without_improvement: u64,
}

/// A run between two rollouts, which a checkpoint can still be made of. It is over once the weights change.
pub struct RecoveryPoint {
    /// How far the run had come.
    pub progress: Progress,
    /// How many calls of components had begun.
    pub calls: u64,
    /// States that the components saved, if they were asked.
    pub states: Option<States>,
}

/// Saved states of the components of a run, each with its id.
pub struct States {
    /// Advantage, objective, masks, weights, step controls.
    pub components: Vec<(String, Vec<u8>)>,
    /// Rewards.
    pub rewards: Vec<(String, Vec<u8>)>,
}
