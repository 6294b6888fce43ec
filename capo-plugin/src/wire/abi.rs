//! The wire: every type that crosses between an executable and a plugin, frozen at revision 1.
//!
//! Plugin authors never open this file. Its rules:
//!
//! * Nothing here changes once released: no field, no method, no layout, not even at the end of a type. abi_stable refuses an
//!   older plugin in a newer host as soon as a type has grown. Growth happens by new extension ids only.
//! * An extension id is `vendor.name/revision`. The type behind an id never changes; a change is a new revision. Both sides
//!   answer `extension(id)`: a plugin's root (its extension points, its recipes) and the host's context.
//! * Sets that may grow (inputs, reductions, dtypes, error and optimizer kinds) are integers with constants, never enums.
//! * Memory is freed by the image that allocated it; an image is an executable or a shared library.
//! * Libraries are never unloaded.
//! * A component has one caller at a time. Different threads may call it, one after another.
//! * No panic unwinds across the ABI: it is caught on the side where it starts.
//! * Borrowed data (`RSlice`, `RStr`, tensors, host extensions) is valid until the call returns, not longer.

// `sabi_trait` generates code that these lints refuse.
#![allow(non_camel_case_types, clippy::needless_lifetimes)]
#![allow(missing_docs, non_local_definitions)]

pub use abi_stable::library::{AbiHeaderRef, LibraryError, ROOT_MODULE_LOADER_NAME_WITH_NUL as HEADER_SYMBOL};

use abi_stable::library::RootModule;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::{RMut, VersionStrings};
use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use crate::{Denominator, Dims, ErrorKind, Extension, Inputs, OptimizerInfo, Reduction, Tensor};

/// Revision of the root module. It stays 1 for as long as old plugins load.
pub const ABI_VERSION: u32 = 1;

/// Extension id of [`AdvantagePoint`].
pub const ADVANTAGE_POINT: &str = "capo.advantage/1";
/// Extension id of [`ObjectivePoint`].
pub const OBJECTIVE_POINT: &str = "capo.objective/1";
/// Extension id of [`MaskPoint`].
pub const MASK_POINT: &str = "capo.mask/1";
/// Extension id of [`RecipePoint`].
pub const RECIPE_POINT: &str = "capo.recipe/1";

/// The symbol that every image exports: a version, and a function that answers questions about the image.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginRoot_Ref, prefix_fields = PluginRoot_Prefix)))]
#[sabi(missing_field(panic))]
pub struct PluginRoot {
    /// [`ABI_VERSION`] of the plugin's side.
    pub abi_version: u32,
    /// The image's extension `id`, or `RNone`.
    #[sabi(last_prefix_field)]
    pub extension: extern "C" fn(id: RStr<'_>) -> ROption<Extension<'static>>,
}

impl RootModule for PluginRoot_Ref {
    abi_stable::declare_root_module_statics! {PluginRoot_Ref}
    const BASE_NAME: &'static str = "capo_plugin";
    const NAME: &'static str = "capo_plugin";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}

/// Builds the root module of this image.
pub(crate) fn leak_root(extension: extern "C" fn(RStr<'_>) -> ROption<Extension<'static>>) -> PluginRoot_Ref {
    PluginRoot { abi_version: ABI_VERSION, extension }.leak_into_prefix()
}

/// Description of one component.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct ComponentInfo {
    /// Id of the component: `vendor.kebab-name`.
    pub id: RString,
    /// One-line description for users.
    pub about: RString,
    /// Name of the crate that registered the component.
    pub package: RString,
    /// Version of that crate.
    pub version: RString,
    /// Configuration keys that the component reads.
    pub keys: RVec<RString>,
}

/// Description of one recipe.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct RecipeInfo {
    /// Name of the recipe in `recipe = "..."`.
    pub name: RString,
    /// One-line description for users.
    pub about: RString,
    /// TOML with `[advantage]`, `[objective]` and any number of `[[mask]]`.
    pub toml: RString,
    /// Name of the crate that registered the recipe.
    pub package: RString,
}

/// Type behind [`ADVANTAGE_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct AdvantagePoint {
    /// Lists all components of this image at this point.
    pub components: extern "C" fn() -> RVec<ComponentInfo>,
    /// Builds component `id` from its table as JSON text.
    pub create: extern "C" fn(id: RStr<'_>, config: RStr<'_>) -> RResult<AdvantageBox, WireError>,
}

/// Type behind [`OBJECTIVE_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct ObjectivePoint {
    /// Lists all components of this image at this point.
    pub components: extern "C" fn() -> RVec<ComponentInfo>,
    /// Builds component `id` from its table as JSON text.
    pub create: extern "C" fn(id: RStr<'_>, config: RStr<'_>) -> RResult<ObjectiveBox, WireError>,
}

/// Type behind [`MASK_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct MaskPoint {
    /// Lists all components of this image at this point.
    pub components: extern "C" fn() -> RVec<ComponentInfo>,
    /// Builds component `id` from its table as JSON text.
    pub create: extern "C" fn(id: RStr<'_>, config: RStr<'_>) -> RResult<MaskBox, WireError>,
}

/// Type behind [`RECIPE_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RecipePoint {
    /// Lists all recipes of this image.
    pub recipes: extern "C" fn() -> RVec<RecipeInfo>,
}

/// [`crate::PluginError`] on the wire.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct WireError {
    /// Kind of the failure.
    pub kind: ErrorKind,
    /// Text of the message.
    pub message: RString,
}

/// [`crate::LastLayer`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireLastLayer<'a> {
    /// `[B, T, D]`: features.
    pub hidden: Tensor<'a>,
    /// `[B, T, K]`, u32: ids of the largest logits.
    pub topk_ids: Tensor<'a>,
    /// `[B, T, K]`: the largest logits.
    pub topk_logits: Tensor<'a>,
    /// `[B, T]`: logsumexp over the vocabulary.
    pub logsumexp: Tensor<'a>,
    /// `[B, T]`: logit of the sampled token.
    pub action_logits: Tensor<'a>,
    /// V: number of vocabulary entries.
    pub vocab_size: u64,
}

/// [`crate::OptimizerState`] on the wire.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireOptimizerState<'a> {
    /// `[V, D]`: the weight.
    pub weight: Tensor<'a>,
    /// `[V, D]`: first moment.
    pub exp_avg: Tensor<'a>,
    /// `[V, D]`: second moment.
    pub exp_avg_sq: Tensor<'a>,
}

/// [`crate::Batch`] on the wire: the fields, shapes and units are described there.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct WireBatch<'a> {
    pub dims: Dims,
    pub step: u64,
    pub max_steps: u64,
    pub iteration: u64,
    pub seed: u64,
    pub sampling_temperature: f32,
    pub sampling_top_p: f32,
    pub sampling_top_k: u32,
    pub loss_temperature: f32,
    pub optimizer: OptimizerInfo,
    pub reduction: Reduction,
    pub denominator: Denominator,
    pub max_completion_length: u64,
    pub completion_ids: RSlice<'a, u32>,
    pub completion_mask: RSlice<'a, u8>,
    pub truncated: RSlice<'a, u8>,
    pub rewards: RSlice<'a, f32>,
    pub advantages: RSlice<'a, f32>,
    pub logps: RSlice<'a, f32>,
    pub losses: ROption<RSlice<'a, f32>>,
    pub dloss_dlogp: ROption<RSlice<'a, f32>>,
    pub old_logps: ROption<RSlice<'a, f32>>,
    pub ref_logps: ROption<RSlice<'a, f32>>,
    pub entropy: ROption<RSlice<'a, f32>>,
    pub last_layer: ROption<WireLastLayer<'a>>,
    pub optimizer_state: ROption<WireOptimizerState<'a>>,
}

/// The host's side of a call: receives a component's reports.
#[sabi_trait]
pub trait HostWire {
    /// Records one number of this step.
    fn record(&mut self, name: RStr<'_>, value: f64);
    /// Records one number per token of this step, `[B, T]`.
    fn record_tokens(&mut self, name: RStr<'_>, values: RSlice<'_, f32>);
    /// Shows a message to the user at the terminal.
    fn warn(&mut self, text: RStr<'_>);
    /// The host's extension `id`, or `RNone`.
    #[sabi(last_prefix_field)]
    fn extension(&mut self, id: RStr<'_>) -> ROption<Extension<'_>>;
}

/// A borrowed [`HostWire`].
pub type HostRef<'a> = HostWire_TO<'a, RMut<'a, ()>>;

/// [`crate::AdvantageEstimator`] on the wire: the methods are described there.
#[sabi_trait]
pub trait AdvantageWire: Send {
    fn inputs(&self) -> Inputs;
    fn estimate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        advantages: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    #[sabi(last_prefix_field)]
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
}

/// [`crate::Objective`] on the wire: the methods are described there.
#[sabi_trait]
pub trait ObjectiveWire: Send {
    fn inputs(&self) -> Inputs;
    fn reduction(&self) -> Reduction;
    fn evaluate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        loss: RSliceMut<'_, f32>,
        dloss_dlogp: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    #[sabi(last_prefix_field)]
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
}

/// [`crate::PreBackwardMask`] on the wire: the methods are described there.
#[sabi_trait]
pub trait MaskWire: Send {
    fn inputs(&self) -> Inputs;
    fn mask(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        keep: RSliceMut<'_, u8>,
    ) -> RResult<(), WireError>;
    fn step_end(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        keep: RSlice<'_, u8>,
        taken: bool,
    ) -> RResult<(), WireError>;
    fn save(&self) -> RResult<RVec<u8>, WireError>;
    #[sabi(last_prefix_field)]
    fn load(&mut self, state: RSlice<'_, u8>) -> RResult<(), WireError>;
}

/// An owned advantage estimator.
pub type AdvantageBox = AdvantageWire_TO<'static, RBox<()>>;
/// An owned objective.
pub type ObjectiveBox = ObjectiveWire_TO<'static, RBox<()>>;
/// An owned mask.
pub type MaskBox = MaskWire_TO<'static, RBox<()>>;
