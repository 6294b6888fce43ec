//! The wire: every type that crosses between a host and a plugin. Authors of plugins need none of
//! it.
//!
//! * An *image* is an executable or a shared library. It exports one [`PluginRoot`], which answers
//!   `extension(id)`. So do a host during a call ([`WireHost`]) and every component ([`WireMask`]
//!   and its siblings).
//! * An id is `vendor.name/revision`. The type behind an id never changes: no field, no method, no
//!   layout, not even at its end, because abi_stable would refuse an older plugin in a newer host.
//!   What is new gets a new id. An unknown id is answered with `RNone`.
//! * Sets that may grow (inputs, reductions, dtypes, kinds of errors and optimizers) are integers
//!   with constants, never enums.
//! * Memory is freed by the image that allocated it. Libraries are never unloaded.
//! * A component has one caller at a time. Different threads may call it, one after another.
//! * No panic unwinds across the ABI: it is caught on the side where it starts.
//! * Borrowed data (`RSlice`, `RStr`, tensors, answers of `extension`) is valid until the call
//!   returns, not longer.

mod environment;
mod host;
mod image;
mod points;

pub use abi_stable::library::{
    AbiHeaderRef, LibraryError, ROOT_MODULE_LOADER_NAME_WITH_NUL as HEADER_SYMBOL,
};

pub use crate::batch::{WireBatch, WireLastLayer, WireOptimizerState};
pub(crate) use environment::WireEnvironment_TO;
pub use environment::{
    EnvironmentBox, WireEnvironment, WireEpisode, WireEpisodes, WireMessage, WireObservation,
    WireToolCall, WireTurn,
};
pub(crate) use host::WireHost_TO;
pub use host::{HostRef, WireError, WireHost};
pub(crate) use image::leak_root;
pub use image::{
    ABI_VERSION, ComponentInfo, KeyDoc, KeyLimits, KeyRange, PluginRoot, PluginRoot_Ref, PointList,
    RECIPES, RecipeInfo, RecipeList,
};
pub use points::{
    AdvantageBox, MaskBox, MeasurementsRef, ObjectiveBox, RewardBox, StepControlBox, WeightBox,
    WireAdvantage, WireCompletion, WireGroup, WireMask, WireMeasurements, WireObjective,
    WireReward, WireRollout, WireStepControl, WireWeight,
};
pub(crate) use points::{
    WireAdvantage_TO, WireMask_TO, WireMeasurements_TO, WireObjective_TO, WireReward_TO,
    WireStepControl_TO, WireWeight_TO,
};
