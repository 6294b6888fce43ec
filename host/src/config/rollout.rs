//! `[rollout]`: how completions are sampled.

use serde::{Deserialize, Serialize};

use super::omission::{is_default, may_be_left_out};
use crate::model::device::Dtype;

/// `[rollout]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutConfig {
    /// G: completions per prompt.
    pub num_generations: usize,
    /// Longest completion, tokens.
    pub max_completion_length: usize,
    /// Divides the logits; 1 samples from the model itself.
    pub temperature: f32,
    /// Sample among the most likely tokens; 0 is off.
    pub top_k: usize,
    /// Sample among the most likely tokens of this total probability; 1 is off.
    pub top_p: f32,
    /// Most completions that are sampled at a time; the others wait for one to end. 0 is no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub max_num_seqs: usize,
    /// Dynamic sampling: groups whose completions all earn the same are dropped, and others sampled in their place (verl's name).
    #[serde(skip_serializing_if = "is_default")]
    pub filter_groups: bool,
    /// How often completions are sampled for one rollout at most, with `filter_groups`; what is missing then is made up for by groups
    /// without a difference in reward.
    #[serde(skip_serializing_if = "is_default_gen_batches")]
    pub max_num_gen_batches: usize,
    /// Floating-point type of the sampler: `f32` or `bf16`; `train.dtype` where it is not set.
    pub dtype: Option<Dtype>,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self {
            num_generations: 8,
            max_completion_length: 256,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            max_num_seqs: 0,
            filter_groups: false,
            max_num_gen_batches: GEN_BATCHES,
            dtype: None,
        }
    }
}

/// `rollout.max_num_gen_batches` where it is not said: that of DAPO's own recipe.
const GEN_BATCHES: usize = 10;

fn is_default_gen_batches(value: &usize) -> bool {
    may_be_left_out(*value == GEN_BATCHES)
}
