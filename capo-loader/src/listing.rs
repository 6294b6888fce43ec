//! The contents of a registry as lines for a person, and as JSON for programs.

use std::path::Path;

use capo_plugin::wire::KeyDoc;
use capo_plugin::{Inputs, Limits, Point};
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

/// The description of one component: its meaning, and a line for each key. Empty for an unknown
/// component.
pub fn of_component(registry: &Registry, point: Point, id: &str) -> Vec<String> {
    let offers = registry.offers();
    let Some(offer) = offers
        .iter()
        .find(|offer| offer.point == point && offer.id == id)
    else {
        return Vec::new();
    };
    let mut lines = vec![offer.about.clone(), String::new()];
    if offer.keys.is_empty() {
        lines.push("No keys.".to_owned());
    } else {
        lines.push("Keys:".to_owned());
        lines.extend(offer.keys.iter().map(key_line));
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
        let names: Vec<&str> = offer.keys.iter().map(|key| key.name.as_str()).collect();
        format!("keys: {}", names.join(", "))
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
    lines.extend(offer.keys.iter().map(key_line));
    lines
}

/// The line of a key: its default, its meaning, and in brackets its values and limits.
fn key_line(key: &KeyDoc) -> String {
    let default = match key.default() {
        None => " (required)".to_owned(),
        Some("null") => String::new(),
        Some(value) => format!(" = {}", one_line(value)),
    };
    let mut values = Vec::new();
    if !key.choices.is_empty() {
        let choices: Vec<&str> = key.choices.iter().map(|name| name.as_str()).collect();
        values.push(one_line(&choices.join(", ")));
    }
    values.extend(Limits::from(key.limits).in_short(key.limits.whole));
    if let Some(range) = key.range.into_option() {
        values.push(format!(
            "search {}..{}",
            end(range.low, range.whole),
            end(range.high, range.whole)
        ));
    }
    let values = if values.is_empty() {
        String::new()
    } else {
        format!(" [{}]", values.join("; "))
    };
    let name = one_line(&key.name);
    format!("  {name}{default}  # {}{values}", one_line(&key.about))
}

/// An end of a range.
fn end(number: f64, is_whole: bool) -> String {
    if is_whole {
        format!("{number}")
    } else {
        format!("{number:?}")
    }
}

/// Names of the inputs, as the fields of a batch are called.
fn input_names(inputs: Inputs) -> Vec<&'static str> {
    let mut names = Vec::new();
    for part in Inputs::OF_BATCH {
        if inputs.contains(part.flag) {
            names.push(part.field);
        }
    }
    if inputs.contains(Inputs::ALIGNMENT) {
        names.push("alignment");
    }
    if inputs.0 & !Inputs::KNOWN.0 != 0 {
        names.push("something that this host does not know");
    }
    names
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
        "keys": offer.keys.iter().map(key).collect::<Vec<_>>(),
        "origin": origin(registry, &offer.origin),
    })
}

/// A key with its description; absent parts are `null`.
fn key(key: &KeyDoc) -> Value {
    let default = key.default();
    let range = key.range.into_option();
    let limits = &key.limits;
    json!({
        "name": one_line(&key.name),
        "about": key.about.as_str(),
        "required": default.is_none(),
        // The default is another author's text, which may not be JSON.
        "default": default.map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text))),
        "value": key.wanted.as_str(),
        "choices": key.choices.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
        "at_least": limits.at_least.into_option(),
        "above": limits.above.into_option(),
        "at_most": limits.at_most.into_option(),
        "below": limits.below.into_option(),
        "search": range.map(|range| {
            json!({ "low": range.low, "high": range.high, "whole": range.whole })
        }),
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
