//! Conversions between the types of authors and hosts and the types on the wire. Slices keep their
//! addresses.

use abi_stable::std_types::{ROption, RSlice, RStr};

use crate::error::{PluginError, shortened};
use crate::wire::{
    HostRef, WireBatch, WireCompletion, WireError, WireGroup, WireLastLayer, WireOptimizerState,
    WireRollout,
};
use crate::{
    Batch, Completion, Denominator, Dims, LastLayer, OptimizerInfo, OptimizerState, ParameterGroup,
    Reduction, Rollout, RolloutContext, SamplerTopK, Tensor,
};

impl From<PluginError> for WireError {
    fn from(error: PluginError) -> Self {
        Self {
            kind: error.kind(),
            message: error.message().into(),
        }
    }
}

impl From<WireError> for PluginError {
    fn from(error: WireError) -> Self {
        Self::new(error.kind, shortened(error.message.as_str()))
    }
}

/// Converts one field's value to the other side.
trait Cross<T> {
    fn cross(self) -> T;
}

macro_rules! same_on_both_sides {
    ($($type:ty),*) => {$(
        impl<'a> Cross<$type> for $type {
            fn cross(self) -> Self {
                self
            }
        }
    )*};
}

same_on_both_sides!(
    bool,
    f32,
    u32,
    u64,
    Denominator,
    Dims,
    OptimizerInfo,
    Reduction,
    RolloutContext<'a>,
    SamplerTopK<'a>,
    Tensor<'a>
);

/// Implements both directions between two types.
macro_rules! crosses {
    ($($from:ty => $to:ty: $there:expr, $back:expr;)*) => {$(
        impl<'a> Cross<$to> for $from {
            fn cross(self) -> $to {
                ($there)(self)
            }
        }

        impl<'a> Cross<$from> for $to {
            fn cross(self) -> $from {
                ($back)(self)
            }
        }
    )*};
}

crosses! {
    usize => u64: |count| count as u64, |count| count as usize;
    &'a str => RStr<'a>: RStr::from_str, |text: RStr<'a>| text.as_str();
    &'a [u8] => RSlice<'a, u8>: RSlice::from_slice, |values: RSlice<'a, u8>| values.as_slice();
    &'a [u32] => RSlice<'a, u32>: RSlice::from_slice, |values: RSlice<'a, u32>| values.as_slice();
    &'a [f32] => RSlice<'a, f32>: RSlice::from_slice, |values: RSlice<'a, f32>| values.as_slice();
}

impl<T: Cross<U>, U> Cross<ROption<U>> for Option<T> {
    fn cross(self) -> ROption<U> {
        self.map(T::cross).into()
    }
}

impl<T: Cross<U>, U> Cross<Option<U>> for ROption<T> {
    fn cross(self) -> Option<U> {
        self.into_option().map(T::cross)
    }
}

/// Implements both directions between two structs with the same fields. A field behind `besides` is
/// not on the wire; an id of the host answers it.
macro_rules! alike {
    ($($type:ident, $wire:ident: $($field:ident)* $(, besides $own:ident)?;)*) => {$(
        alike!(@one $type => $wire: $($field)*,);
        alike!(@one $wire => $type: $($field)*, $($own)?);
    )*};
    (@one $from:ident => $to:ident: $($field:ident)*, $($own:ident)?) => {
        impl<'a> Cross<$to<'a>> for $from<'a> {
            fn cross(self) -> $to<'a> {
                $to { $($field: self.$field.cross(),)* $($own: None)? }
            }
        }

        impl<'a> From<&$from<'a>> for $to<'a> {
            fn from(from: &$from<'a>) -> Self {
                (*from).cross()
            }
        }
    };
}

alike! {
    Batch, WireBatch: dims step max_steps iteration seed sampling_temperature sampling_top_p sampling_top_k loss_temperature optimizer reduction
        denominator max_completion_length completion_ids completion_mask truncated rewards advantages logps losses dloss_dlogp old_logps ref_logps
        entropy last_layer optimizer_state rollout_context sampler_top_k, besides step_learning_rate;
    LastLayer, WireLastLayer: hidden topk_ids topk_logits logsumexp action_logits vocab_size;
    OptimizerState, WireOptimizerState: weight exp_avg exp_avg_sq;
    ParameterGroup, WireGroup: name parameters;
    Completion, WireCompletion: prompt text messages environment_reward ids truncated answer columns;
}

/// Id of the host's answer, an `f64`, that masks and weights find in [`Batch::step_learning_rate`].
pub(crate) const STEP_LEARNING_RATE: &str = "capo.batch.step-learning-rate/1";

impl<'a> Batch<'a> {
    /// The batch as a mask or a weight sees it: `wire`, and the fields that only an id of the host
    /// answers.
    pub(crate) fn with_answers(wire: &WireBatch<'a>, host: &mut HostRef<'_>) -> Self {
        let answer = host
            .extension(RStr::from_str(STEP_LEARNING_RATE))
            .into_option();
        let step_learning_rate = answer.and_then(|answer| answer.get::<f64>().ok().copied());
        Self {
            step_learning_rate,
            ..wire.into()
        }
    }
}

impl Rollout<'_> {
    /// The rollout on the wire; `completions` holds the borrowed data.
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
