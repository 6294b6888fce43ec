//! The wire of recipes, revision 2, frozen: recipes that also set defaults. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::RVec;

use crate::abi::RecipeInfo;

/// Extension id of [`RecipePoint2`].
pub const RECIPE_POINT_2: &str = "capo.recipe/2";

/// Behind [`RECIPE_POINT_2`]. The text of these recipes also holds `[train]`, `[rollout]` and any number of `[[reward]]`: values for keys
/// that the run's user did not set; and any number of `[[weight]]` and `[[step_control]]`.
///
/// A recipe stands here or behind [`RECIPE_POINT`](crate::abi::RECIPE_POINT), never in both.
#[repr(C)]
#[derive(StableAbi)]
pub struct RecipePoint2 {
    /// All recipes of this image that set defaults.
    pub recipes: extern "C" fn() -> RVec<RecipeInfo>,
}
