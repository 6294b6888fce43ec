//! Wire types of the step-control point, frozen at revision 1. The point was added after the first release, under a
//! separate extension id. The rules of [`crate::abi`] hold here too.

// `sabi_trait` generates code that these lints refuse.
#![allow(non_camel_case_types, clippy::needless_lifetimes)]
#![allow(missing_docs, non_local_definitions)]

use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{RBox, RResult, RSlice, RSliceMut, RStr, RVec};
use abi_stable::{StableAbi, sabi_trait};

use crate::Inputs;
use crate::abi::{ComponentInfo, HostRef, WireBatch, WireError};

/// Extension id of [`StepControlPoint`].
pub const STEP_CONTROL_POINT: &str = "capo.step-control/1";

/// Type behind [`STEP_CONTROL_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct StepControlPoint {
    /// Lists all components of this image at this point.
    pub components: extern "C" fn() -> RVec<ComponentInfo>,
    /// Builds component `id` from its table as JSON text.
    pub create: extern "C" fn(id: RStr<'_>, config: RStr<'_>) -> RResult<StepControlBox, WireError>,
}

/// [`crate::ParameterGroup`] on the wire: the fields are described there.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct WireGroup<'a> {
    pub name: RStr<'a>,
    pub parameters: u64,
}

/// The proposed update on the wire: numbers that only the host can measure, computed on request. [`crate::Update`]
/// describes the methods.
#[sabi_trait]
pub trait MeasureWire {
    fn norms(&mut self, norms: RSliceMut<'_, f64>) -> RResult<(), WireError>;
    fn fisher(&mut self) -> RResult<f64, WireError>;
    fn last_layer_kl(&mut self) -> RResult<f64, WireError>;
    #[sabi(last_prefix_field)]
    fn measure_kl(&mut self, fraction: f64) -> RResult<f64, WireError>;
}

/// A borrowed [`MeasureWire`].
pub type MeasureRef<'a> = MeasureWire_TO<'a, RMut<'a, ()>>;

/// [`crate::StepControl`] on the wire: the methods are described there.
#[sabi_trait]
pub trait StepControlWire: Send {
    fn inputs(&self) -> Inputs;
    fn restores_moments(&self) -> bool;
    fn control(
        &mut self,
        host: &mut HostRef<'_>,
        measure: &mut MeasureRef<'_>,
        batch: &WireBatch<'_>,
        weights: RSlice<'_, f32>,
        groups: RSlice<'_, WireGroup<'_>>,
        scales: RSliceMut<'_, f64>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    #[sabi(last_prefix_field)]
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
}

/// An owned step control.
pub type StepControlBox = StepControlWire_TO<'static, RBox<()>>;
