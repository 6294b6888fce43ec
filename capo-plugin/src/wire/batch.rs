//! The batch of one optimizer step.

#![allow(
    missing_docs,
    reason = "the fields are described at `Batch`, `LastLayer` and `OptimizerState`"
)]

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RSlice};

use crate::{Denominator, Dims, OptimizerInfo, Reduction, RolloutContext, SamplerTopK, Tensor};

/// [`crate::LastLayer`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireLastLayer<'a> {
    pub hidden: Tensor<'a>,
    pub topk_ids: Tensor<'a>,
    pub topk_logits: Tensor<'a>,
    pub logsumexp: Tensor<'a>,
    pub action_logits: Tensor<'a>,
    pub vocab_size: u64,
}

/// [`crate::OptimizerState`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireOptimizerState<'a> {
    pub weight: Tensor<'a>,
    pub exp_avg: Tensor<'a>,
    pub exp_avg_sq: Tensor<'a>,
}

/// [`crate::Batch`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireBatch<'a> {
    pub dims: Dims,
    pub step: u64,
    pub max_steps: u64,
    pub iteration: u64,
    pub seed: u64,
    pub sampling_temperature: f32,
    pub sampling_top_p: f32,
    pub sampling_top_k: u32,
    pub loss_temperature: f32,
    pub optimizer: OptimizerInfo,
    pub reduction: Reduction,
    pub denominator: Denominator,
    pub max_completion_length: u64,
    pub completion_ids: RSlice<'a, u32>,
    pub completion_mask: RSlice<'a, u8>,
    pub truncated: RSlice<'a, u8>,
    pub rewards: RSlice<'a, f32>,
    pub advantages: RSlice<'a, f32>,
    pub logps: RSlice<'a, f32>,
    pub losses: ROption<RSlice<'a, f32>>,
    pub dloss_dlogp: ROption<RSlice<'a, f32>>,
    pub old_logps: ROption<RSlice<'a, f32>>,
    pub ref_logps: ROption<RSlice<'a, f32>>,
    pub entropy: ROption<RSlice<'a, f32>>,
    pub last_layer: ROption<WireLastLayer<'a>>,
    pub optimizer_state: ROption<WireOptimizerState<'a>>,
    pub rollout_context: ROption<RolloutContext<'a>>,
    pub sampler_top_k: ROption<SamplerTopK<'a>>,
}
