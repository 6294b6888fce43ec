//! This image's descriptions of its components: ids, names and meanings of keys, and ranges in which to search for a
//! key's value. Also the declarations of masks and weights about their decisions, and the recipes in two lists. The
//! oldest hosts read only the first list: recipes of advantage, objective and masks alone.

use abi_stable::std_types::{RResult, RStr, RString, RVec};

use crate::abi::{ComponentInfo, RecipeInfo, WireError};
use crate::abi_keys::KeyInfo;
use crate::abi_sweep::SweepRange;
use crate::guard::caught;
use crate::keys::Key;
use crate::register::{Entry, Recipe};
use crate::{MaskTraits, PluginError, Wired};

/// All components of this image at a point.
pub(crate) extern "C" fn components<W: Wired>() -> RVec<ComponentInfo> {
    let entries = inventory::iter::<Entry>.into_iter().filter(|entry| entry.point == W::POINT);
    entries
        .map(|entry| ComponentInfo {
            id: entry.id.into(),
            about: entry.about.into(),
            package: entry.package.into(),
            version: entry.version.into(),
            keys: keys_of(entry),
        })
        .collect()
}

/// Builds component `id` of a point from its table as JSON text.
pub(crate) extern "C" fn create<W: Wired>(id: RStr<'_>, config: RStr<'_>) -> RResult<W, WireError> {
    let built = match entry(RStr::from_str(W::POINT.extension_id()), id) {
        Some(entry) => (entry.make)(config.as_str()),
        None => Err(PluginError::config(format!("the image has no component `{id}` at this point"))),
    };
    let wire = built.map(|made| *made.downcast::<W>().expect("an entry makes what its point takes"));
    wire.map_err(WireError::from).into()
}

/// The keys of `entry`: the keys that its type reads, or, where the type does not tell, the keys that its author
/// describes. Empty where the type panics when asked, because a panic must not cross the ABI.
fn keys_of(entry: &Entry) -> RVec<RString> {
    match caught(entry.keys) {
        Some(Some(keys)) => keys.iter().map(|key| (*key).into()).collect(),
        Some(None) => entry.docs.list().into_iter().map(|key| key.info.name).collect(),
        None => RVec::new(),
    }
}

/// Function behind `capo.keys/1`.
pub(crate) extern "C" fn describe(point: RStr<'_>, id: RStr<'_>) -> RVec<KeyInfo> {
    described(point, id).into_iter().map(|key| key.info).collect()
}

/// Function behind `capo.sweep/1`.
pub(crate) extern "C" fn ranges(point: RStr<'_>, id: RStr<'_>) -> RVec<SweepRange> {
    described(point, id).into_iter().filter_map(|key| key.range).collect()
}

/// Function behind `capo.mask-traits/1`.
pub(crate) extern "C" fn traits(point: RStr<'_>, id: RStr<'_>, config: RStr<'_>) -> RResult<MaskTraits, WireError> {
    let declared = entry(point, id).map_or(Ok(MaskTraits::NONE), |entry| (entry.traits)(config.as_str()));
    declared.map_err(WireError::from).into()
}

fn described(point: RStr<'_>, id: RStr<'_>) -> Vec<Key> {
    entry(point, id).map(|entry| entry.docs.list()).unwrap_or_default()
}

fn entry(point: RStr<'_>, id: RStr<'_>) -> Option<&'static Entry> {
    let asked = |entry: &&Entry| entry.point.extension_id() == point.as_str() && entry.id == id.as_str();
    inventory::iter::<Entry>.into_iter().find(asked)
}

/// Sections that the oldest hosts refuse in a recipe: defaults of settings, and points that were added later.
const SETTINGS: [&str; 5] = ["train", "rollout", "reward", "weight", "step_control"];

/// Function behind `capo.recipe/1`.
pub(crate) extern "C" fn recipes() -> RVec<RecipeInfo> {
    list(false)
}

/// Function behind `capo.recipe/2`.
pub(crate) extern "C" fn recipes_with_settings() -> RVec<RecipeInfo> {
    list(true)
}

fn list(settings: bool) -> RVec<RecipeInfo> {
    inventory::iter::<Recipe>
        .into_iter()
        .filter(|recipe| has_settings(recipe.toml) == settings)
        .map(|recipe| RecipeInfo {
            name: recipe.name.into(),
            about: recipe.about.into(),
            toml: recipe.toml.into(),
            package: recipe.package.into(),
        })
        .collect()
}

/// True if a recipe's text names one of these sections, in a table header or in a key above the first header. The
/// text need not be valid TOML: the host parses it and reports errors.
fn has_settings(toml: &str) -> bool {
    let mut above = true;
    toml.lines().map(str::trim).any(|line| {
        let header = line.starts_with('[');
        above &= !header;
        let words = line.trim_start_matches(['[', ' ', '"', '\'']);
        let name = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').next().unwrap_or_default();
        (header || above) && SETTINGS.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::has_settings;

    #[test]
    fn settings_are_found_in_headers_and_in_keys_above_them() {
        let mask = "[advantage]\nuse = \"a.b\"\n\n[[mask]]\nuse = \"a.c\"\n";
        for settings in [
            "[train]\nlearning_rate = 1e-4\n",
            "  [ rollout ]\n",
            "[[reward]]\nuse = \"exact_match\"\n",
            "[train.more]\n",
            "[\"train\"]\n",
            "[[weight]]\nuse = \"a.b\"\n",
            "[[step_control]]\nuse = \"a.b\"\n",
        ] {
            assert!(has_settings(settings) && has_settings(&format!("{mask}{settings}")), "{settings}");
        }
        assert!(
            has_settings(&format!("train.learning_rate = 1e-4\n{mask}")) && has_settings("rollout = { top_k = 5 }")
        );
        // None of these counts: a component's own key, another name, a comment.
        for none in
            ["", mask, &format!("{mask}reward = 1\n"), "[trainer]\n", "# [train]\n", "[[mask]]\nnote = \"[train]\"\n"]
        {
            assert!(!has_settings(none), "{none}");
        }
    }
}
