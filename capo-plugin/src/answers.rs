//! This image's answers to a loader's questions, and the symbol that a loader looks for.

use abi_stable::library::{CheckTypeLayout, LibHeader, RootModuleError, RootModuleResult};
use abi_stable::prefix_type::PrefixRefTrait;
use abi_stable::std_types::{ROption, RResult, RStr};

use crate::abi::{PluginRoot_Ref, RECIPE_POINT, RecipePoint, leak_root};
use crate::abi_keys::{KEYS_POINT, KeysPoint};
use crate::abi_recipe::{RECIPE_POINT_2, RecipePoint2};
use crate::abi_sweep::{SWEEP_POINT, SweepPoint};
use crate::abi_traits::{TRAITS_POINT, TraitsPoint};
use crate::described::{describe, ranges, recipes, recipes_with_settings, traits};
use crate::{Extension, Image, Point, points};

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
    // SAFETY: `LibHeader` below is built for the same `PluginRoot_Ref`, so the erased reference is read back with its own type.
    let erased = unsafe { own_root().to_prefix_ref().cast() };
    RResult::<_, RootModuleError>::ROk(erased)
}

/// The symbol that a loader looks for. It is defined here once, instead of in an export macro, so that several
/// plugins can be linked into one executable. A test compares the name with abi_stable's.
// SAFETY: no other item of any image carries this name. abi_stable's own macro would define it too, and is not used.
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
pub static ROOT_HEADER: LibHeader =
    // SAFETY: `construct_root` erases a `PluginRoot_Ref`.
    unsafe { LibHeader::from_constructor::<PluginRoot_Ref>(construct_root, CheckTypeLayout::Yes) };

extern "C" fn own_extension(id: RStr<'_>) -> ROption<Extension<'static>> {
    static RECIPE: RecipePoint = RecipePoint { recipes };
    static KEYS: KeysPoint = KeysPoint { describe };
    static SWEEP: SweepPoint = SweepPoint { ranges };
    static TRAITS: TraitsPoint = TraitsPoint { traits };
    static RECIPE_2: RecipePoint2 = RecipePoint2 { recipes: recipes_with_settings };
    match id.as_str() {
        RECIPE_POINT => ROption::RSome(Extension::of(&RECIPE)),
        KEYS_POINT => ROption::RSome(Extension::of(&KEYS)),
        SWEEP_POINT => ROption::RSome(Extension::of(&SWEEP)),
        TRAITS_POINT => ROption::RSome(Extension::of(&TRAITS)),
        RECIPE_POINT_2 => ROption::RSome(Extension::of(&RECIPE_2)),
        id => Point::ALL.into_iter().find(|point| point.extension_id() == id).map(points::own).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MaskTraits;

    /// An image that was built before keys had descriptions and masks had declarations.
    extern "C" fn older(id: RStr<'_>) -> ROption<Extension<'static>> {
        if [KEYS_POINT, SWEEP_POINT, TRAITS_POINT].contains(&id.as_str()) { ROption::RNone } else { own_extension(id) }
    }

    /// An image whose owner compiled other types under the ids.
    extern "C" fn another(id: RStr<'_>) -> ROption<Extension<'static>> {
        static RECIPE: RecipePoint = RecipePoint { recipes };
        let changed = [KEYS_POINT, SWEEP_POINT, TRAITS_POINT].contains(&id.as_str());
        if changed { ROption::RSome(Extension::of(&RECIPE)) } else { own_extension(id) }
    }

    #[test]
    fn an_image_may_know_nothing_of_descriptions_but_not_something_else() {
        let ask = |extension| Image::from_root(leak_root(extension));
        assert_eq!(ask(older).key_docs(Point::Mask, "test.mask"), Ok(Vec::new()));
        assert_eq!(ask(older).sweeps(Point::Mask, "test.mask"), Ok(Vec::new()));
        assert_eq!(ask(older).mask_traits(Point::Mask, "test.mask", "{}").unwrap(), MaskTraits::NONE);
        let differences = ask(another).key_docs(Point::Mask, "test.mask").unwrap_err();
        assert!(differences.contains("describe"), "{differences}");
        let differences = ask(another).sweeps(Point::Mask, "test.mask").unwrap_err();
        assert!(differences.contains("ranges"), "{differences}");
        let error = ask(another).mask_traits(Point::Mask, "test.mask", "{}").unwrap_err();
        assert!(error.to_string().contains("traits"), "{error}");
    }

    #[test]
    fn the_header_symbol_is_the_one_that_loaders_look_for() {
        let source = include_str!("answers.rs");
        let name = abi_stable::library::ROOT_MODULE_LOADER_NAME;
        assert!(source.contains(&format!("export_name = \"{name}\"")), "abi_stable looks for `{name}`");
    }
}
