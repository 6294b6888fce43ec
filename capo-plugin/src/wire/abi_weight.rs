//! Wire types of the weight point, frozen at revision 1. The point was added after the first release, under a
//! separate extension id. The rules of [`crate::abi`] hold here too.

// `sabi_trait` generates code that these lints refuse.
#![allow(non_camel_case_types, clippy::needless_lifetimes)]
#![allow(missing_docs, non_local_definitions)]

use abi_stable::std_types::{RBox, RResult, RSlice, RSliceMut, RStr, RVec};
use abi_stable::{StableAbi, sabi_trait};

use crate::Inputs;
use crate::abi::{ComponentInfo, HostRef, WireBatch, WireError};

/// Extension id of [`WeightPoint`].
pub const WEIGHT_POINT: &str = "capo.weight/1";

/// Type behind [`WEIGHT_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct WeightPoint {
    /// Lists all components of this image at this point.
    pub components: extern "C" fn() -> RVec<ComponentInfo>,
    /// Builds component `id` from its table as JSON text.
    pub create: extern "C" fn(id: RStr<'_>, config: RStr<'_>) -> RResult<WeightBox, WireError>,
}

/// [`crate::TokenWeight`] on the wire: the methods are described there.
#[sabi_trait]
pub trait WeightWire: Send {
    fn inputs(&self) -> Inputs;
    fn weigh(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        keep: RSlice<'_, u8>,
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
    #[sabi(last_prefix_field)]
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
}

/// An owned token weight.
pub type WeightBox = WeightWire_TO<'static, RBox<()>>;
