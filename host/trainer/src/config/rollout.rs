//! `[rollout]`: sampling of completions.

use host_model::device::Dtype;
use serde::{Deserialize, Serialize};

use super::setting::{Setting, Settings, settings};

/// Longest prompt and completion in tokens, far above any model's limit.
pub(super) const LONGEST: usize = 1 << 24;

/// Section `[rollout]`.
#[settings]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RolloutConfig {
    /// G: completions per prompt. It divides the completions of a step, and is above 1 for an
    /// advantage that compares them.
    #[setting(default = 8, at_least = 1, trl, verl = ["rollout.n"])]
    pub num_generations: usize,
    /// The longest completion. With `data.max_prompt_length` it is at most the positions of the
    /// model.
    #[setting(default = 256, unit = "tokens", at_least = 1, at_most = LONGEST, trl)]
    #[setting(verl = ["data.max_response_length"], differs = "256 by default, TRL's 512")]
    pub max_completion_length: usize,
    /// The sampling temperature, which divides the logits; 1 samples from the model itself.
    #[setting(default = 1.0, above = 0, at_most = 100, trl, verl = ["rollout.temperature"])]
    #[setting(hint = "for greedy evaluation see `[eval]`; sampling needs more than 0")]
    #[setting(differs = "TRL's divides the logits of the loss too; here that is \
         `train.loss_temperature`, 1 by default")]
    pub temperature: f32,
    /// Number of most likely tokens to sample from; 0 turns top-k off.
    #[setting(default = 0, trl, verl = ["rollout.top_k"])]
    pub top_k: usize,
    /// Total probability of the most likely tokens to sample from; 1 turns top-p off.
    #[setting(default = 1.0, above = 0, at_most = 1, hint = "1 is off", trl)]
    #[setting(verl = ["rollout.top_p"])]
    pub top_p: f32,
    /// Most completions that are sampled at a time; 0 samples all at once. A completion that ends
    /// frees its place for a waiting prompt, so that a few long ones do not hold up the rest.
    #[setting(default = 0, verl = ["rollout.max_num_seqs"], differs = "a setting of vLLM's")]
    #[setting(trl = [
        "use_transformers_continuous_batching", "transformers_continuous_batching_config",
        "use_transformers_paged"
    ])]
    pub max_num_seqs: usize,
    /// Drops groups whose completions all have the same reward, and samples others in their place:
    /// [dynamic sampling](../docs/objectives.md#dynamic-sampling).
    #[setting(default = false, verl = ["algorithm.filter_groups"])]
    pub filter_groups: bool,
    /// With `filter_groups`: most sampling rounds for one rollout. After them, groups without a
    /// difference in reward fill it. The default is from DAPO's own recipe.
    #[setting(default = 10, at_least = 1, verl = ["algorithm.filter_groups.max_num_gen_batches"])]
    pub max_num_gen_batches: usize,
    /// Data type of the sampler; see [sampler and trainer](#sampler-and-trainer).
    #[setting(unset = "as `train.dtype`", verl = ["rollout.dtype"])]
    pub dtype: Option<Dtype>,
}
