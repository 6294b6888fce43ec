//! Wire types of the reward point, frozen at revision 1. The point was added after the first release, under a
//! separate extension id. The rules of [`crate::abi`] hold here too.

// `sabi_trait` generates code that these lints refuse.
#![allow(non_camel_case_types, clippy::needless_lifetimes)]
#![allow(missing_docs, non_local_definitions)]

use abi_stable::std_types::{RBox, RResult, RSlice, RSliceMut, RStr, RVec};
use abi_stable::{StableAbi, sabi_trait};

use crate::Purpose;
use crate::abi::{ComponentInfo, HostRef, WireError};

/// Extension id of [`RewardPoint`].
pub const REWARD_POINT: &str = "capo.reward/1";

/// Type behind [`REWARD_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RewardPoint {
    /// Lists all components of this image at this point.
    pub components: extern "C" fn() -> RVec<ComponentInfo>,
    /// Builds component `id` from its table as JSON text.
    pub create: extern "C" fn(id: RStr<'_>, config: RStr<'_>) -> RResult<RewardBox, WireError>,
}

/// [`crate::Completion`] on the wire: the fields are described there.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireCompletion<'a> {
    pub prompt: RStr<'a>,
    pub text: RStr<'a>,
    pub ids: RSlice<'a, u32>,
    /// Boolean: 0 or 1.
    pub truncated: u8,
    pub answer: RStr<'a>,
    /// A JSON object.
    pub columns: RStr<'a>,
}

/// [`crate::Rollout`] on the wire: the fields, shapes and units are described there.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireRollout<'a> {
    pub purpose: Purpose,
    pub step: u64,
    pub max_steps: u64,
    pub seed: u64,
    pub group_size: u64,
    pub max_completion_length: u64,
    pub completions: RSlice<'a, WireCompletion<'a>>,
}

/// [`crate::Reward`] on the wire: the methods are described there.
#[sabi_trait]
pub trait RewardWire: Send {
    fn score(
        &mut self,
        host: &mut HostRef<'_>,
        rollout: &WireRollout<'_>,
        rewards: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    #[sabi(last_prefix_field)]
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
}

/// An owned reward.
pub type RewardBox = RewardWire_TO<'static, RBox<()>>;
