//! The contents of a registry as lines for a person, and as JSON for programs.

use std::path::Path;

use capo_plugin::Inputs;
use capo_plugin::wire::{KeyDoc, KeyRange};
use serde_json::{Value, json};

use crate::find;
use crate::offer::{Offer, OfferedRecipe, Origin};
use crate::registry::Registry;
use crate::trust::{LoadedPlugin, PIN};
use crate::warning::one_line;

/// Column at which the second column begins, in characters.
const INDENT: usize = 27;

/// Lists components and recipes. With `verbose`, adds a line per key, the inputs of components and
/// the text of recipes.
pub fn lines(registry: &Registry, verbose: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut point = None;
    for offer in registry.offers() {
        if point.replace(offer.point) != Some(offer.point) {
            let gap = if lines.is_empty() { "" } else { "\n" };
            lines.push(format!("{gap}{}", offer.point.name()));
        }
        lines.push(format!("  {:<24} {}", offer.id, offer.about));
        let detail = if verbose {
            in_full(registry, offer)
        } else {
            vec![in_one_line(offer)]
        };
        lines.extend(
            detail
                .into_iter()
                .map(|line| format!("{:INDENT$}{line}", "")),
        );
        lines.push(format!(
            "{:INDENT$}from {}, {}",
            "", offer.package, offer.origin
        ));
    }
    lines.push("\nrecipe".to_owned());
    for recipe in registry.recipes() {
        lines.push(format!(
            "  {:<24} {} ({})",
            recipe.name, recipe.about, recipe.origin
        ));
        if verbose {
            let text = recipe.toml.trim().lines();
            lines.extend(text.map(|line| format!("{:INDENT$}{line}", "").trim_end().to_owned()));
        }
    }
    lines
}

/// Returns a line per loaded plugin: its file with its hash, as a pin.
pub fn pins(registry: &Registry) -> Vec<String> {
    let plugins = registry.plugins().into_iter();
    plugins
        .map(|plugin| {
            format!(
                "{}{PIN}{}  {}",
                plugin.path.display(),
                plugin.sha256,
                plugin.packages.join(", ")
            )
        })
        .collect()
}

fn in_one_line(offer: &Offer) -> String {
    if offer.keys.is_empty() {
        "no keys".to_owned()
    } else {
        format!("keys: {}", offer.keys.join(", "))
    }
}

/// Returns the inputs that a component asks the trainer for, and a line per key.
fn in_full(registry: &Registry, offer: &Offer) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(inputs) = registry
        .inputs(offer)
        .filter(|inputs| *inputs != Inputs::NONE)
    {
        lines.push(format!("asks for {}", input_names(inputs).join(", ")));
    }
    lines.push(
        if offer.keys.is_empty() {
            "no keys"
        } else {
            "keys:"
        }
        .to_owned(),
    );
    lines.extend(offer.keys.iter().map(|key| key_line(key, doc(offer, key))));
    lines
}

/// The author's description of `key`.
fn doc<'a>(offer: &'a Offer, key: &str) -> Option<&'a KeyDoc> {
    offer.key_docs.iter().find(|doc| doc.name == key)
}

/// Returns the line of a key: its default, meaning and range for a search, as far as its author
/// gave them.
fn key_line(key: &str, doc: Option<&KeyDoc>) -> String {
    let Some(doc) = doc else {
        return format!("  {key}");
    };
    let default = match doc.default() {
        None => " (required)".to_owned(),
        Some("null") => String::new(),
        Some(value) => format!(" = {}", one_line(value)),
    };
    let search = doc
        .range
        .into_option()
        .map(|KeyRange { low, high, whole }| {
            if whole {
                format!("; search {low}..{high}")
            } else {
                format!("; search {low:?}..{high:?}")
            }
        });
    format!(
        "  {key}{default}  # {}{}",
        one_line(&doc.about),
        search.unwrap_or_default()
    )
}

/// Names of the inputs, as the fields of a batch are called.
fn input_names(inputs: Inputs) -> Vec<&'static str> {
    let named = [
        (Inputs::OLD_LOGPS, "old_logps"),
        (Inputs::REF_LOGPS, "ref_logps"),
        (Inputs::ENTROPY, "entropy"),
        (Inputs::LAST_LAYER, "last_layer"),
        (Inputs::OPTIMIZER_STATE, "optimizer_state"),
        (Inputs::ROLLOUT_CONTEXT, "rollout_context"),
        (Inputs::SAMPLER_TOP_K, "sampler_top_k"),
        (Inputs::ALIGNMENT, "alignment"),
    ];
    let known = named
        .iter()
        .filter(|(flag, _)| inputs.contains(*flag))
        .map(|(_, name)| *name);
    let unknown =
        (inputs.0 & !Inputs::KNOWN.0 != 0).then_some("something that this host does not know");
    known.chain(unknown).collect()
}

/// The contents of [`lines`] as JSON, and the installed libraries; docs/distribution.md explains
/// each field. `program` and its `version` name the caller.
pub fn json(registry: &Registry, program: &str, version: &str) -> Value {
    let components: Vec<Value> = registry
        .offers()
        .into_iter()
        .map(|offer| component(registry, offer))
        .collect();
    let recipes: Vec<Value> = registry
        .recipes()
        .into_iter()
        .map(|offered| recipe(registry, offered))
        .collect();
    let installed: Vec<Value> = find::installed()
        .iter()
        .map(|path| installed(path))
        .collect();
    json!({
        program: version,
        "plugins": registry.plugins().iter().map(plugin).collect::<Vec<_>>(),
        "components": components,
        "recipes": recipes,
        "installed": installed,
    })
}

fn plugin(plugin: &LoadedPlugin) -> Value {
    json!({
        "path": plugin.path.to_string_lossy(),
        "sha256": plugin.sha256,
        "packages": plugin.packages,
    })
}

fn component(registry: &Registry, offer: &Offer) -> Value {
    let (package, version) = offer
        .package
        .rsplit_once(' ')
        .unwrap_or((&offer.package, ""));
    json!({
        "point": offer.point.name(),
        "id": offer.id,
        "about": offer.about,
        "package": package,
        "version": version,
        "inputs": registry.inputs(offer).map(input_names),
        "keys": offer.keys.iter().map(|name| key(name, doc(offer, name))).collect::<Vec<_>>(),
        "origin": origin(registry, &offer.origin),
    })
}

/// A key with its author's description; absent parts are `null`.
fn key(name: &str, doc: Option<&KeyDoc>) -> Value {
    let default = doc.and_then(KeyDoc::default);
    let range = doc.and_then(|doc| doc.range.into_option());
    let search = range
        .map(|KeyRange { low, high, whole }| json!({ "low": low, "high": high, "whole": whole }));
    json!({
        "name": name,
        "about": doc.map(|doc| doc.about.as_str()),
        "required": doc.map(|_| default.is_none()),
        // The default is another author's text, which may not be JSON.
        "default": default.map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text))),
        "search": search,
    })
}

fn recipe(registry: &Registry, recipe: &OfferedRecipe) -> Value {
    json!({
        "name": recipe.name,
        "about": recipe.about,
        "toml": recipe.toml,
        "origin": origin(registry, &recipe.origin),
    })
}

/// File and hash; `null` for a built-in component.
fn origin(registry: &Registry, origin: &Origin) -> Value {
    let Origin::File(path) = origin else {
        return Value::Null;
    };
    let sha256 = registry
        .plugins()
        .into_iter()
        .find(|plugin| plugin.path == *path)
        .map(|plugin| plugin.sha256);
    json!({ "path": path.to_string_lossy(), "sha256": sha256 })
}

fn installed(path: &Path) -> Value {
    json!({
        "name": path.file_name().map(|name| name.to_string_lossy()),
        "path": path.to_string_lossy(),
    })
}
