//! `[rollout]`: sampling of completions.

use serde::{Deserialize, Serialize};

use super::omission::{is_default, may_be_left_out};
use crate::model::device::Dtype;

/// Section `[rollout]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutConfig {
    /// G: number of completions per prompt.
    pub num_generations: usize,
    /// Longest completion, in tokens.
    pub max_completion_length: usize,
    /// Sampling temperature, the divisor of the logits; 1 samples from the model itself.
    pub temperature: f32,
    /// Number of most likely tokens to sample from; 0 turns top-k off.
    pub top_k: usize,
    /// Total probability of the most likely tokens to sample from; 1 turns top-p off.
    pub top_p: f32,
    /// Largest number of completions that are sampled at a time; the others wait for one to end. 0 is no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub max_num_seqs: usize,
    /// Dynamic sampling: groups whose completions all have one reward are dropped and replaced by newly sampled groups (verl's name).
    #[serde(skip_serializing_if = "is_default")]
    pub filter_groups: bool,
    /// With `filter_groups`, the largest number of times that completions are sampled for one rollout. After that, groups without a
    /// difference in reward fill the rollout.
    #[serde(skip_serializing_if = "is_default_gen_batches")]
    pub max_num_gen_batches: usize,
    /// Floating-point type of the sampler, `f32` or `bf16`; `None` is `train.dtype`.
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

/// Default of `rollout.max_num_gen_batches`, from DAPO's own recipe.
const GEN_BATCHES: usize = 10;

fn is_default_gen_batches(value: &usize) -> bool {
    may_be_left_out(*value == GEN_BATCHES)
}
