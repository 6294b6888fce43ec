//! Settings of TRL's `GRPOConfig`, in `[train]`, that components of libmasks implement here:
//! `aliases.rs`.

use serde::{Deserialize, Serialize};

use super::setting::{Setting, Settings, settings};

/// Keys of `[train]` that become components. Each is off by default.
#[settings]
#[derive(Serialize, Deserialize)]
pub struct TrlConfig {
    /// Drops completions that the length limit cut off. Like the settings below, it
    /// [appends a component](../docs/objectives.md#trls-other-settings) of libmasks.so.
    #[setting(
        default = false,
        trl,
        differs = "with `--plugin libmasks.so`; metrics are of all completions"
    )]
    pub mask_truncated_completions: bool,
    /// Keeps this share of the tokens, those with the highest entropy; 1 keeps all.
    #[setting(
        trl,
        differs = "over a step; dropped ones count as zeros with `train.mask_denominator \
         = \"original\"`"
    )]
    pub top_entropy_quantile: Option<f64>,
    /// Drops completions that the policy has moved away from, beyond this KL divergence, and whose
    /// advantage is negative.
    #[setting(trl, differs = "as the setting above")]
    pub off_policy_mask_threshold: Option<f64>,
    /// Corrects the difference between sampler and trainer. Each of the three settings below turns
    /// it on too, unless this is `false`.
    #[setting(
        trl,
        differs = "off by default, TRL's is on with vLLM; with `vespo` the correction is in φ, as \
         in TRL"
    )]
    pub vllm_importance_sampling_correction: Option<bool>,
    /// The ratio of a token or a sequence, and what becomes of a ratio that is too large.
    #[setting(unset = "`sequence_mask`, when on", trl)]
    #[setting(differs = "modes that mask need `train.mask_denominator = \"original\"`, as above")]
    pub vllm_importance_sampling_mode: Option<Mode>,
    /// The largest ratio.
    #[setting(unset = "3, when on")]
    #[setting(trl = ["vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"])]
    pub vllm_importance_sampling_clip_max: Option<f64>,
    /// The smallest ratio.
    #[setting(trl)]
    pub vllm_importance_sampling_clip_min: Option<f64>,
}

/// Value of `vllm_importance_sampling_mode`.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    TokenTruncate,
    TokenMask,
    SequenceTruncate,
    SequenceMask,
}
