//! Progress of a run, and the parts of it that can be saved.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::stages::record::StepRecord;
use crate::stages::rollout::RolloutRecord;

/// Progress of a run: the contents of a checkpoint besides weights and components' states.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Number of optimizer steps done, including skipped steps.
    pub step: u64,
    /// Number of training prompts used.
    pub prompts: u64,
    /// Number of completions sampled. Older checkpoints lack it; a resume then computes it from the
    /// number of prompts.
    #[serde(default)]
    pub completions: u64,
    /// Number of prompt and completion tokens processed.
    pub num_tokens: u64,
    /// Number of completion tokens that reached the masks.
    pub completion_tokens: u64,
    /// Number of completion tokens that masks rejected.
    pub rejected_tokens: u64,
    /// Number of steps without an update.
    pub skipped_steps: u64,
    /// Share of a step's length that step controls left the last time that they left something;
    /// `None` before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<f64>,
    /// Held-out accuracy before step 0.
    pub accuracy_before: Option<f64>,
    /// The newest held-out accuracy after step 0.
    pub accuracy: Option<f64>,
    /// Mean reward of held-out prompts before step 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward_before: Option<f64>,
    /// The newest mean reward of held-out prompts after step 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward: Option<f64>,
    /// The best evaluation; `None` without a metric for it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "finite"
    )]
    pub best: Option<Best>,
}

impl Progress {
    /// Counts a rollout.
    pub fn rollout(&mut self, record: &RolloutRecord) {
        self.prompts += record.prompts;
        self.completions += record.prompts * record.group_size as u64;
        self.num_tokens += record.tokens;
    }

    /// Counts a step.
    pub fn step(&mut self, record: &StepRecord) {
        self.step += 1;
        self.completion_tokens += record.batch.sampled().completion_tokens();
        self.rejected_tokens += record.rejected_tokens();
        self.skipped_steps += u64::from(!record.applied.taken);
        // A share of 0 says nothing about the next step, so the last one stays.
        let share = record.applied.share();
        self.applied = (!record.applied.shares.is_empty() && share > 0.0)
            .then_some(share)
            .or(self.applied);
    }

    /// Share of all completion tokens so far that masks rejected.
    pub fn rejected_share(&self) -> f64 {
        self.rejected_tokens as f64 / self.completion_tokens.max(1) as f64
    }
}

/// The evaluation with the best value so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Step after which it was evaluated.
    pub step: u64,
    /// The value of `train.metric_for_best_model`.
    pub value: f64,
    /// Number of evaluations since the last one that improved by more than
    /// `train.early_stopping_threshold`.
    pub without_improvement: u64,
    /// Name of the metric, and true if a greater value is better; `None` in older checkpoints.
    #[serde(default)]
    pub measure: Option<(String, bool)>,
}

/// Reads the best evaluation. Earlier versions saved an infinite value as `null`; that evaluation
/// becomes `None`.
fn finite<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Best>, D::Error> {
    let best = Option::<Value>::deserialize(from)?.filter(|best| !best["value"].is_null());
    best.map(serde_json::from_value)
        .transpose()
        .map_err(serde::de::Error::custom)
}

/// State of a run between two rollouts, from which a checkpoint can still be made. A change of the
/// weights invalidates it.
pub struct RecoveryPoint {
    pub progress: Progress,
    /// Number of component calls begun before this point.
    pub calls: u64,
    /// States saved by the components, if they were asked.
    pub states: Option<States>,
}

/// Saved states of a run's components, each with the component's id.
pub struct States {
    /// States of advantage estimator, objective, masks, weights and step controls.
    pub components: Vec<(String, Vec<u8>)>,
    /// States of reward components.
    pub rewards: Vec<(String, Vec<u8>)>,
}
