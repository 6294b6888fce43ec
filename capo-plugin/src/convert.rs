//! Conversions between the types of authors and hosts and the types on the wire. Slices keep their
//! addresses.

use abi_stable::std_types::RSlice;

use crate::cross::Cross;
use crate::error::{PluginError, shortened};
use crate::wire::{WireCompletion, WireError, WireGroup, WireRollout};
use crate::{Completion, ParameterGroup, Rollout};

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

/// Implements both directions between two structs with the same fields.
macro_rules! alike {
    ($($type:ident, $wire:ident: $($field:ident)*;)*) => {$(
        impl<'a> From<&$type<'a>> for $wire<'a> {
            fn from(from: &$type<'a>) -> Self {
                Self { $($field: from.$field.there(),)* }
            }
        }

        impl<'a> From<&$wire<'a>> for $type<'a> {
            fn from(from: &$wire<'a>) -> Self {
                Self { $($field: Cross::back(from.$field),)* }
            }
        }
    )*};
}

alike! {
    ParameterGroup, WireGroup: name parameters;
    Completion, WireCompletion:
        prompt text messages environment_reward ids truncated answer columns;
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
