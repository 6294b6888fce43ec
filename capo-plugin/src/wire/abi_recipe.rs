//! Wire types for recipes that also set defaults: revision 2, frozen. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::RVec;

use crate::abi::RecipeInfo;

/// Extension id of [`RecipePoint2`].
pub const RECIPE_POINT_2: &str = "capo.recipe/2";

/// Type behind [`RECIPE_POINT_2`]. These recipes may also hold `[train]`, `[rollout]` and any number of `[[reward]]`, with
/// values for keys that the user did not set. They may also hold any number of `[[weight]]` and `[[step_control]]`.
///
/// Each recipe is listed here or behind [`RECIPE_POINT`](crate::abi::RECIPE_POINT), never in both.
#[repr(C)]
#[derive(StableAbi)]
pub struct RecipePoint2 {
    /// Lists all recipes of this image with sections that [`RECIPE_POINT`](crate::abi::RECIPE_POINT) does not allow.
    pub recipes: extern "C" fn() -> RVec<RecipeInfo>,
}
