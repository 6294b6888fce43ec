//! Conversions between what authors and hosts see and what crosses the wire. Slices keep their addresses.

use abi_stable::std_types::{ROption, RSlice};

use crate::abi::{WireBatch, WireLastLayer, WireOptimizerState};
use crate::batch::{Batch, LastLayer, OptimizerState};

impl<'a> From<&Batch<'a>> for WireBatch<'a> {
    fn from(batch: &Batch<'a>) -> Self {
        let optional = |values: Option<&'a [f32]>| ROption::from(values.map(RSlice::from_slice));
        Self {
            dims: batch.dims,
            step: batch.step,
            max_steps: batch.max_steps,
            iteration: batch.iteration,
            seed: batch.seed,
            sampling_temperature: batch.sampling_temperature,
            sampling_top_p: batch.sampling_top_p,
            sampling_top_k: batch.sampling_top_k,
            loss_temperature: batch.loss_temperature,
            optimizer: batch.optimizer,
            reduction: batch.reduction,
            denominator: batch.denominator,
            max_completion_length: batch.max_completion_length as u64,
            completion_ids: RSlice::from_slice(batch.completion_ids),
            completion_mask: RSlice::from_slice(batch.completion_mask),
            truncated: RSlice::from_slice(batch.truncated),
            rewards: RSlice::from_slice(batch.rewards),
            advantages: RSlice::from_slice(batch.advantages),
            logps: RSlice::from_slice(batch.logps),
            losses: optional(batch.losses),
            dloss_dlogp: optional(batch.dloss_dlogp),
            old_logps: optional(batch.old_logps),
            ref_logps: optional(batch.ref_logps),
            entropy: optional(batch.entropy),
            last_layer: batch
                .last_layer
                .map(|last| WireLastLayer {
                    hidden: last.hidden,
                    topk_ids: last.topk_ids,
                    topk_logits: last.topk_logits,
                    logsumexp: last.logsumexp,
                    action_logits: last.action_logits,
                    vocab_size: last.vocab_size as u64,
                })
                .into(),
            optimizer_state: batch
                .optimizer_state
                .map(|state| WireOptimizerState {
                    weight: state.weight,
                    exp_avg: state.exp_avg,
                    exp_avg_sq: state.exp_avg_sq,
                })
                .into(),
        }
    }
}

impl<'a> From<&WireBatch<'a>> for Batch<'a> {
    fn from(wire: &WireBatch<'a>) -> Self {
        let optional = |values: ROption<RSlice<'a, f32>>| values.into_option().map(|values| values.as_slice());
        Self {
            dims: wire.dims,
            step: wire.step,
            max_steps: wire.max_steps,
            iteration: wire.iteration,
            seed: wire.seed,
            sampling_temperature: wire.sampling_temperature,
            sampling_top_k: wire.sampling_top_k,
            sampling_top_p: wire.sampling_top_p,
            loss_temperature: wire.loss_temperature,
            optimizer: wire.optimizer,
            reduction: wire.reduction,
            denominator: wire.denominator,
            max_completion_length: wire.max_completion_length as usize,
            completion_ids: wire.completion_ids.as_slice(),
            completion_mask: wire.completion_mask.as_slice(),
            truncated: wire.truncated.as_slice(),
            rewards: wire.rewards.as_slice(),
            advantages: wire.advantages.as_slice(),
            logps: wire.logps.as_slice(),
            losses: optional(wire.losses),
            dloss_dlogp: optional(wire.dloss_dlogp),
            old_logps: optional(wire.old_logps),
            ref_logps: optional(wire.ref_logps),
            entropy: optional(wire.entropy),
            last_layer: wire.last_layer.into_option().map(|last| LastLayer {
                hidden: last.hidden,
                topk_ids: last.topk_ids,
                topk_logits: last.topk_logits,
                logsumexp: last.logsumexp,
                action_logits: last.action_logits,
                vocab_size: last.vocab_size as usize,
            }),
            optimizer_state: wire.optimizer_state.into_option().map(|state| OptimizerState {
                weight: state.weight,
                exp_avg: state.exp_avg,
                exp_avg_sq: state.exp_avg_sq,
            }),
        }
    }
}
