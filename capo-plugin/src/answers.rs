//! This image's answers to a loader's questions, and the symbol that a loader looks for.

use abi_stable::library::{CheckTypeLayout, LibHeader, RootModuleError, RootModuleResult};
use abi_stable::prefix_type::PrefixRefTrait;
use abi_stable::std_types::{ROption, RResult, RStr};

use crate::wire::{PluginRoot_Ref, RECIPES, RecipeList, leak_root};
use crate::{Extension, Image, Point, described, points};

impl Image {
    /// The image that this code was linked into.
    pub fn own() -> Self {
        Self::from_root(own_root())
    }
}

fn own_root() -> PluginRoot_Ref {
    static ROOT: std::sync::OnceLock<PluginRoot_Ref> = std::sync::OnceLock::new();
    *ROOT.get_or_init(|| leak_root(own_extension))
}

extern "C" fn construct_root() -> RootModuleResult {
    // SAFETY: `LibHeader` below is built for the same `PluginRoot_Ref`, so the erased reference is
    // read back with its own type.
    let erased = unsafe { own_root().to_prefix_ref().cast() };
    RResult::<_, RootModuleError>::ROk(erased)
}

/// The symbol that a loader looks for. It is defined here once, instead of in an export macro, so
/// that several plugins can be linked into one executable. A test compares the name with
/// abi_stable's.
// SAFETY: no other item of any image carries this name. abi_stable's own macro would define it too,
// and is not used.
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
pub static ROOT_HEADER: LibHeader =
    // SAFETY: `construct_root` erases a `PluginRoot_Ref`.
    unsafe {
        LibHeader::from_constructor::<PluginRoot_Ref>(construct_root, CheckTypeLayout::Yes)
    };

extern "C" fn own_extension(id: RStr<'_>) -> ROption<Extension<'static>> {
    static OWN_RECIPES: RecipeList = RecipeList {
        recipes: described::recipes,
    };
    match id.as_str() {
        RECIPES => ROption::RSome(Extension::of(&OWN_RECIPES)),
        id => Point::ALL
            .into_iter()
            .find(|point| point.extension_id() == id)
            .map(points::own)
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image that knows nothing of masks, and whose owner compiled another type under the id of
    /// recipes.
    extern "C" fn other(id: RStr<'_>) -> ROption<Extension<'static>> {
        match id.as_str() {
            "capo.mask/1" => ROption::RNone,
            RECIPES => own_extension(RStr::from_str("capo.mask/1")),
            _ => own_extension(id),
        }
    }

    #[test]
    fn an_image_may_lack_a_point_but_not_answer_with_something_else() {
        let image = Image::from_root(leak_root(other));
        assert!(image.components(Point::Mask).unwrap().is_empty());
        let refused = image.mask("test.mask", "{}").err().unwrap();
        assert_eq!(
            refused.to_string(),
            "the image has no extension `capo.mask/1`"
        );
        let differences = image.recipes().unwrap_err();
        assert!(differences.contains("recipes"), "{differences}");
    }

    #[test]
    fn the_header_symbol_is_the_one_that_loaders_look_for() {
        let source = include_str!("answers.rs");
        let name = abi_stable::library::ROOT_MODULE_LOADER_NAME;
        assert!(
            source.contains(&format!("export_name = \"{name}\"")),
            "abi_stable looks for `{name}`"
        );
    }
}
