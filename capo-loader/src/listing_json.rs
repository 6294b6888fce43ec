//! A registry's contents as JSON; docs/distribution.md explains each field.

use std::path::Path;

use capo_plugin::abi_keys::KeyInfo;
use capo_plugin::abi_sweep::SweepRange;
use serde_json::{Value, json};

use crate::find;
use crate::listing::input_names;
use crate::offer::{Offer, OfferedRecipe, Origin};
use crate::registry::Registry;

/// The contents of [`lines`](super::listing::lines), and the installed libraries. `program` and its `version` name the caller.
pub fn json(registry: &Registry, program: &str, version: &str) -> Value {
    let plugins = registry.plugins().into_iter().map(
        |plugin| json!({ "path": plugin.path.to_string_lossy(), "sha256": plugin.sha256, "packages": plugin.packages }),
    );
    json!({
        program: version,
        "plugins": plugins.collect::<Vec<_>>(),
        "components": registry.offers().into_iter().map(|offer| component(registry, offer)).collect::<Vec<_>>(),
        "recipes": registry.recipes().into_iter().map(|offered| recipe(registry, offered)).collect::<Vec<_>>(),
        "installed": find::installed().iter().map(|path| installed(path)).collect::<Vec<_>>(),
    })
}

fn component(registry: &Registry, offer: &Offer) -> Value {
    let (docs, sweeps) = (registry.key_docs(offer), registry.sweeps(offer));
    let doc = |key: &String| docs.iter().find(|doc| doc.name.as_str() == key);
    let range = |key: &String| sweeps.iter().find(|range| range.key.as_str() == key);
    let (package, version) = offer.package.rsplit_once(' ').unwrap_or((&offer.package, ""));
    json!({
        "point": offer.point.name(),
        "id": offer.id,
        "about": offer.about,
        "package": package,
        "version": version,
        "inputs": registry.inputs(offer).map(input_names),
        "keys": offer.keys.iter().map(|name| key(name, doc(name), range(name))).collect::<Vec<_>>(),
        "origin": origin(registry, &offer.origin),
    })
}

/// A key with its author's description; absent parts are `null`.
fn key(name: &str, doc: Option<&KeyInfo>, range: Option<&SweepRange>) -> Value {
    let default = doc.and_then(KeyInfo::default);
    json!({
        "name": name,
        "about": doc.map(|doc| doc.about.as_str()),
        "required": doc.map(|_| default.is_none()),
        // The default is another author's text, which may not be JSON.
        "default": default.map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text))),
        "search": range.map(|range| json!({ "low": range.low, "high": range.high, "whole": range.whole })),
    })
}

fn recipe(registry: &Registry, recipe: &OfferedRecipe) -> Value {
    json!({
        "name": recipe.name,
        "about": recipe.about,
        "toml": recipe.toml,
        "sets_defaults": recipe.settings,
        "origin": origin(registry, &recipe.origin),
    })
}

/// File and hash; `null` for a built-in component.
fn origin(registry: &Registry, origin: &Origin) -> Value {
    let Origin::File(path) = origin else { return Value::Null };
    let sha256 = registry.plugins().into_iter().find(|plugin| plugin.path == *path).map(|plugin| plugin.sha256);
    json!({ "path": path.to_string_lossy(), "sha256": sha256 })
}

fn installed(path: &Path) -> Value {
    json!({ "name": path.file_name().map(|name| name.to_string_lossy()), "path": path.to_string_lossy() })
}
