//! A host during a call of a component: what the component may report and ask.

// `sabi_trait` generates code that these lints refuse.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_local_definitions,
    clippy::needless_lifetimes
)]

use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use crate::{ErrorKind, Extension};

/// [`crate::PluginError`] on the wire.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct WireError {
    /// Kind of the failure.
    pub kind: ErrorKind,
    /// Text of the message.
    pub message: RString,
}

/// The host's side of a call: [`crate::Ctx`] and [`crate::Collective`] describe the methods.
#[sabi_trait]
pub trait WireHost {
    fn record(&mut self, name: RStr<'_>, value: f64);
    fn record_tokens(&mut self, name: RStr<'_>, values: RSlice<'_, f32>);
    fn warn(&mut self, text: RStr<'_>);
    fn rank(&self) -> u64;
    fn ranks(&self) -> u64;
    fn all_reduce_sum(&self, values: RSliceMut<'_, f64>) -> RResult<(), WireError>;
    fn all_gather(&self, values: RSlice<'_, i64>) -> RResult<RVec<RVec<i64>>, WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// A borrowed [`WireHost`].
pub type HostRef<'a> = WireHost_TO<'a, RMut<'a, ()>>;
