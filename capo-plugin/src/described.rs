//! This image's lists of its components and recipes.

use abi_stable::std_types::{RResult, RStr, RVec};

use crate::guard::caught;
use crate::register::{Entry, Recipe};
use crate::wire::{ComponentInfo, RecipeInfo, WireError};
use crate::{PluginError, WireObject};

fn entries<W: WireObject>() -> impl Iterator<Item = &'static Entry> {
    inventory::iter::<Entry>
        .into_iter()
        .filter(|entry| entry.point == W::POINT)
}

/// All components of this image at a point.
pub(crate) extern "C" fn components<W: WireObject>() -> RVec<ComponentInfo> {
    let info = |entry: &Entry| ComponentInfo {
        id: entry.name.id.into(),
        about: entry.name.about.into(),
        package: entry.name.package.into(),
        version: entry.name.version.into(),
        // A default that panics must not cross the ABI.
        keys: caught(entry.keys).unwrap_or_default().into(),
    };
    entries::<W>().map(info).collect()
}

/// Builds component `id` of a point from its table as JSON text.
pub(crate) extern "C" fn create<W: WireObject>(
    id: RStr<'_>,
    config: RStr<'_>,
) -> RResult<W, WireError> {
    let built = match entries::<W>().find(|entry| entry.name.id == id.as_str()) {
        Some(entry) => (entry.make)(config.as_str()),
        None => Err(PluginError::config(format!(
            "the image has no component `{id}` at this point"
        ))),
    };
    let wire = built.map(|made| {
        *made
            .downcast::<W>()
            .expect("an entry makes what its point takes")
    });
    wire.map_err(WireError::from).into()
}

/// All recipes of this image.
pub(crate) extern "C" fn recipes() -> RVec<RecipeInfo> {
    let info = |recipe: &Recipe| RecipeInfo {
        name: recipe.name.into(),
        about: recipe.about.into(),
        toml: recipe.toml.into(),
        package: recipe.package.into(),
    };
    inventory::iter::<Recipe>.into_iter().map(info).collect()
}
