//! The components of each point, as objects: [`crate::Reward`] and its siblings describe the
//! methods.
//!
//! `extension` answers what a later minor version of a point asks its components; today's
//! components know the ids of their points' files.

// `sabi_trait` generates code that these lints refuse.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_local_definitions,
    clippy::needless_lifetimes
)]

use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr, RVec};
use abi_stable::{StableAbi, sabi_trait};

use super::{HostRef, WireBatch, WireError};
use crate::{Extension, Inputs, Purpose, Reduction, Traits};

/// [`crate::Completion`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireCompletion<'a> {
    pub prompt: RStr<'a>,
    pub text: RStr<'a>,
    pub messages: RStr<'a>,
    pub environment_reward: f32,
    pub ids: RSlice<'a, u32>,
    pub truncated: bool,
    pub answer: RStr<'a>,
    pub columns: RStr<'a>,
}

/// [`crate::Rollout`] on the wire.
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

/// A [`crate::Reward`].
#[sabi_trait]
pub trait WireReward: Send {
    fn inputs(&self) -> Inputs;
    fn score(
        &mut self,
        host: &mut HostRef<'_>,
        rollout: &WireRollout<'_>,
        rewards: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// A [`crate::Advantage`].
#[sabi_trait]
pub trait WireAdvantage: Send {
    fn inputs(&self) -> Inputs;
    fn estimate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        advantages: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// A [`crate::Objective`].
#[sabi_trait]
pub trait WireObjective: Send {
    fn inputs(&self) -> Inputs;
    fn reduction(&self) -> Reduction;
    fn evaluate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        losses: RSliceMut<'_, f32>,
        dloss_dlogp: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// A [`crate::Mask`].
#[sabi_trait]
pub trait WireMask: Send {
    fn inputs(&self) -> Inputs;
    fn traits(&self) -> Traits;
    fn mask(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        token_mask: RSliceMut<'_, u8>,
    ) -> RResult<(), WireError>;
    fn step_end(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        token_mask: RSlice<'_, u8>,
        taken: bool,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// A [`crate::Weight`].
#[sabi_trait]
pub trait WireWeight: Send {
    fn inputs(&self) -> Inputs;
    fn traits(&self) -> Traits;
    fn weigh(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        token_mask: RSlice<'_, u8>,
        weights: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError>;
    fn step_end(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        weights: RSlice<'_, f32>,
        taken: bool,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// [`crate::ParameterGroup`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct WireGroup<'a> {
    pub name: RStr<'a>,
    pub parameters: u64,
}

/// [`crate::Measurements`] of a proposed update, which only the host can make.
#[sabi_trait]
pub trait WireMeasurements {
    fn norms(&mut self, norms: RSliceMut<'_, f64>) -> RResult<(), WireError>;
    fn fisher(&mut self) -> RResult<f64, WireError>;
    fn last_layer_kl(&mut self) -> RResult<f64, WireError>;
    fn measure_kl(&mut self, fraction: f64, share: f64) -> RResult<f64, WireError>;
    fn alignment(&mut self) -> RResult<ROption<f64>, WireError>;
    #[sabi(last_prefix_field)]
    fn gradient_norm(&mut self) -> RResult<ROption<f64>, WireError>;
}

/// A borrowed [`WireMeasurements`].
pub type MeasurementsRef<'a> = WireMeasurements_TO<'a, RMut<'a, ()>>;

/// A [`crate::StepControl`].
#[sabi_trait]
pub trait WireStepControl: Send {
    fn inputs(&self) -> Inputs;
    fn restores_moments(&self) -> bool;
    fn control(
        &mut self,
        host: &mut HostRef<'_>,
        measurements: &mut MeasurementsRef<'_>,
        batch: &WireBatch<'_>,
        weights: RSlice<'_, f32>,
        groups: RSlice<'_, WireGroup<'_>>,
        scales: RSliceMut<'_, f64>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// An owned reward.
pub type RewardBox = WireReward_TO<'static, RBox<()>>;
/// An owned advantage estimator.
pub type AdvantageBox = WireAdvantage_TO<'static, RBox<()>>;
/// An owned objective.
pub type ObjectiveBox = WireObjective_TO<'static, RBox<()>>;
/// An owned mask.
pub type MaskBox = WireMask_TO<'static, RBox<()>>;
/// An owned weight.
pub type WeightBox = WireWeight_TO<'static, RBox<()>>;
/// An owned step control.
pub type StepControlBox = WireStepControl_TO<'static, RBox<()>>;
