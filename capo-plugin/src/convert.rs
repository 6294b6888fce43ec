//! Conversions between what authors and hosts see and what crosses the wire. Slices keep their addresses.

use abi_stable::std_types::{ROption, RSlice, RStr};

use crate::abi::{WireBatch, WireError, WireLastLayer, WireOptimizerState};
use crate::abi_reward::{WireCompletion, WireRollout};
use crate::abi_step_control::WireGroup;
use crate::batch::{Batch, LastLayer, OptimizerState};
use crate::error::{PluginError, shortened};
use crate::rollout::{Completion, Rollout};
use crate::step_control::ParameterGroup;

impl From<PluginError> for WireError {
    fn from(error: PluginError) -> Self {
        Self { kind: error.kind(), message: error.message().into() }
    }
}

impl From<WireError> for PluginError {
    fn from(error: WireError) -> Self {
        Self::new(error.kind, shortened(error.message.as_str()))
    }
}

impl<'a> From<&ParameterGroup<'a>> for WireGroup<'a> {
    fn from(group: &ParameterGroup<'a>) -> Self {
        Self { name: RStr::from_str(group.name), parameters: group.parameters }
    }
}

impl<'a> From<&WireGroup<'a>> for ParameterGroup<'a> {
    fn from(group: &WireGroup<'a>) -> Self {
        Self { name: group.name.as_str(), parameters: group.parameters }
    }
}

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

impl Rollout<'_> {
    /// The rollout on the wire; `completions` holds what it borrows.
    pub(crate) fn to_wire<'w>(&self, completions: &'w [WireCompletion<'w>]) -> WireRollout<'w> {
        WireRollout {
            purpose: self.purpose,
            step: self.step,
            max_steps: self.max_steps,
            seed: self.seed,
            group_size: self.group_size as u64,
            max_completion_length: self.max_completion_length as u64,
            completions: RSlice::from_slice(completions),
        }
    }
}

impl<'a> From<&Completion<'a>> for WireCompletion<'a> {
    fn from(completion: &Completion<'a>) -> Self {
        Self {
            prompt: RStr::from_str(completion.prompt),
            text: RStr::from_str(completion.text),
            ids: RSlice::from_slice(completion.ids),
            truncated: completion.truncated.into(),
            answer: RStr::from_str(completion.answer),
            columns: RStr::from_str(completion.columns),
        }
    }
}

impl<'a> From<&WireCompletion<'a>> for Completion<'a> {
    fn from(wire: &WireCompletion<'a>) -> Self {
        Self {
            prompt: wire.prompt.as_str(),
            text: wire.text.as_str(),
            ids: wire.ids.as_slice(),
            truncated: wire.truncated != 0,
            answer: wire.answer.as_str(),
            columns: wire.columns.as_str(),
        }
    }
}

impl<'a> From<&WireRollout<'a>> for Rollout<'a> {
    fn from(wire: &WireRollout<'a>) -> Self {
        Self {
            purpose: wire.purpose,
            step: wire.step,
            max_steps: wire.max_steps,
            seed: wire.seed,
            group_size: wire.group_size as usize,
            max_completion_length: wire.max_completion_length as usize,
            completions: wire.completions.iter().map(Completion::from).collect(),
        }
    }
}
