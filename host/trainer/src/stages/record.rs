//! The record of a step. Metrics, the completions' log and the run's progress observe it.

use std::ops::Range;
use std::time::Duration;

use capo_loader::decision::Decision;

use super::backward::Reduced;
use super::batch::{StepBatch, StepInfo};
use super::control::Applied;
use super::recorder::Recorded;

/// The record of one optimizer step.
#[derive(Debug)]
pub struct StepRecord {
    /// The step's settings, as components saw them. Its `step` counts from 0.
    pub info: StepInfo,
    /// Indices of the step's completions in their rollout.
    pub rows: Range<usize>,
    /// The tokens, with log-probabilities, advantages and losses.
    pub batch: StepBatch,
    /// Rejected tokens and weights.
    pub decision: Decision,
    /// The loss, and the shares of the gradient that masks and weights removed.
    pub reduced: Reduced,
    /// Duration of the backward passes of rejected tokens; `None` without such a pass.
    pub second_pass: Option<Duration>,
    /// Gradient norms, and the step that was taken.
    pub applied: Applied,
    /// Number of tokens that the training pass runs through the model, and of the distinct tokens
    /// among them.
    pub passes: (usize, usize),
    /// Numbers that components recorded, and the times of the stages.
    pub recorded: Recorded,
}

impl StepRecord {
    /// Number of completion tokens that masks and weights rejected.
    pub fn rejected_tokens(&self) -> u64 {
        self.batch.sampled().completion_tokens() - self.decision.tokens()
    }
}
