//! The components of the point `environment`, as objects: [`crate::Environment`] describes the
//! methods.

// `sabi_trait` generates code that these lints refuse.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_local_definitions,
    clippy::needless_lifetimes
)]

use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RStr, RString, RVec, Tuple2};
use abi_stable::{StableAbi, sabi_trait};

use super::{HostRef, WireError};
use crate::{Extension, Inputs, Purpose};

/// [`crate::Episode`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireEpisode<'a> {
    pub number: u64,
    pub prompt: RStr<'a>,
    pub answer: RStr<'a>,
    pub columns: RStr<'a>,
    pub group: u64,
    pub place: u64,
    pub seed: u64,
}

/// [`crate::Episodes`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireEpisodes<'a> {
    pub purpose: Purpose,
    pub step: u64,
    pub max_steps: u64,
    pub max_turns: u64,
    pub episodes: RSlice<'a, WireEpisode<'a>>,
}

/// [`crate::ToolCall`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireToolCall<'a> {
    pub name: RStr<'a>,
    pub arguments: RStr<'a>,
}

/// [`crate::Turn`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireTurn<'a> {
    pub episode: u64,
    pub number: u64,
    pub text: RStr<'a>,
    pub calls: RSlice<'a, WireToolCall<'a>>,
    pub is_last: bool,
}

/// [`crate::Message`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone)]
pub struct WireMessage {
    pub role: RString,
    pub name: RString,
    pub content: RString,
}

/// [`crate::Observation`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone)]
pub struct WireObservation {
    pub episode: u64,
    pub messages: RVec<WireMessage>,
    pub ended: bool,
    pub reward: f32,
    pub metrics: RVec<Tuple2<RString, f64>>,
}

/// A [`crate::Environment`].
#[sabi_trait]
pub trait WireEnvironment: Send {
    fn inputs(&self) -> Inputs;
    fn tools(&mut self) -> RResult<RVec<RString>, WireError>;
    fn begin(
        &mut self,
        host: &mut HostRef<'_>,
        episodes: &WireEpisodes<'_>,
    ) -> RResult<RVec<RString>, WireError>;
    fn respond(
        &mut self,
        host: &mut HostRef<'_>,
        turns: RSlice<'_, WireTurn<'_>>,
    ) -> RResult<RVec<WireObservation>, WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// An owned environment.
pub type EnvironmentBox = WireEnvironment_TO<'static, RBox<()>>;
