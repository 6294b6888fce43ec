//! What an image offers: its components at each point, and its recipes.

// abi_stable's derive generates code that these lints refuse.
#![allow(missing_docs, non_camel_case_types)]

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{ROption, RResult, RStr, RString, RVec};

use super::WireError;
use crate::Extension;

/// Revision of the root. It stays 1 for as long as old plugins load.
pub const ABI_VERSION: u32 = 1;

/// The symbol that every image exports: a version, and a function that answers questions about the
/// image.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginRoot_Ref, prefix_fields = PluginRoot_Prefix)))]
#[sabi(missing_field(panic))]
pub struct PluginRoot {
    /// [`ABI_VERSION`] of the image.
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

/// Builds the root of this image.
pub(crate) fn leak_root(
    extension: extern "C" fn(RStr<'_>) -> ROption<Extension<'static>>,
) -> PluginRoot_Ref {
    PluginRoot {
        abi_version: ABI_VERSION,
        extension,
    }
    .leak_into_prefix()
}

/// Type behind the id of a point whose components are objects of type `W`, such as
/// [`MaskBox`](super::MaskBox).
#[repr(C)]
#[derive(StableAbi)]
pub struct PointList<W> {
    /// Lists all components of this image at this point.
    pub components: extern "C" fn() -> RVec<ComponentInfo>,
    /// Builds component `id` from its table as JSON text.
    pub create: extern "C" fn(id: RStr<'_>, config: RStr<'_>) -> RResult<W, WireError>,
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
    /// The keys that the component reads from its table.
    pub keys: RVec<KeyDoc>,
}

/// Description of one key.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, PartialEq)]
pub struct KeyDoc {
    /// Name of the key in a table.
    pub name: RString,
    /// One-line meaning for users.
    pub about: RString,
    /// The default as JSON text; `null` where absence has a meaning of its own. `RNone` where a
    /// table must have the key.
    pub default: ROption<RString>,
    /// Range in which to search for a good value. The first key with a range has the strongest
    /// effect.
    pub range: ROption<KeyRange>,
    /// Limits of the numbers in a value.
    pub limits: KeyLimits,
    /// Values that a table may hold, in words: `a number`.
    pub wanted: RString,
    /// All values, if the key has only these; empty for any other key.
    pub choices: RVec<RString>,
}

/// Limits of the numbers in a key's value; `RNone` for no limit.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq)]
pub struct KeyLimits {
    /// The smallest number.
    pub at_least: ROption<f64>,
    /// Numbers are larger than this.
    pub above: ROption<f64>,
    /// The largest number.
    pub at_most: ROption<f64>,
    /// Numbers are smaller than this.
    pub below: ROption<f64>,
    /// True if an infinite number is a value too.
    pub infinite: bool,
    /// True if the numbers are whole.
    pub whole: bool,
}

/// Range in which to search for a good value of a key.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq)]
pub struct KeyRange {
    /// The lowest value. Where it is above 0, a search spaces values evenly in their logarithm.
    pub low: f64,
    /// The highest value.
    pub high: f64,
    /// True if the key takes whole numbers alone.
    pub whole: bool,
}

/// Extension id of [`RecipeList`].
pub const RECIPES: &str = "capo.recipe/1";

/// Type behind [`RECIPES`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RecipeList {
    /// Lists all recipes of this image.
    pub recipes: extern "C" fn() -> RVec<RecipeInfo>,
}

/// Description of one recipe.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct RecipeInfo {
    /// Name of the recipe in `recipe = "..."`.
    pub name: RString,
    /// One-line description for users.
    pub about: RString,
    /// TOML with `[advantage]`, `[objective]` and any number of `[[mask]]`, `[[weight]]` and
    /// `[[step_control]]`. It may also hold `[train]`, `[rollout]` and `[[reward]]`, with values
    /// for keys that the user did not set.
    pub toml: RString,
    /// Name of the crate that registered the recipe.
    pub package: RString,
}
