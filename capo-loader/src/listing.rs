//! The contents of a registry as lines for a person; [`json`] gives them to programs.

use capo_plugin::Inputs;
use capo_plugin::abi_keys::KeyInfo;
use capo_plugin::abi_sweep::SweepRange;

use crate::offer::Offer;
use crate::registry::Registry;
use crate::trust::PIN;
use crate::warning::one_line;

pub use crate::listing_json::json;

/// Column at which the second column begins, in characters.
const INDENT: usize = 27;

/// Lists components and recipes. With `verbose`, adds a line per key, the inputs of components and the text of recipes.
pub fn lines(registry: &Registry, verbose: bool) -> Vec<String> {
    let (mut lines, mut point) = (Vec::new(), None);
    for offer in registry.offers() {
        if point.replace(offer.point) != Some(offer.point) {
            let gap = if lines.is_empty() { "" } else { "\n" };
            lines.push(format!("{gap}{}", offer.point.name()));
        }
        lines.push(format!("  {:<24} {}", offer.id, offer.about));
        let detail = if verbose { in_full(registry, offer) } else { vec![in_one_line(offer)] };
        lines.extend(detail.into_iter().map(|line| format!("{:INDENT$}{line}", "")));
        lines.push(format!("{:INDENT$}from {}, {}", "", offer.package, offer.origin));
    }
    lines.push("\nrecipe".to_owned());
    for recipe in registry.recipes() {
        lines.push(format!("  {:<24} {} ({})", recipe.name, recipe.about, recipe.origin));
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
        .map(|plugin| format!("{}{PIN}{}  {}", plugin.path.display(), plugin.sha256, plugin.packages.join(", ")))
        .collect()
}

fn in_one_line(offer: &Offer) -> String {
    if offer.keys.is_empty() { "no keys".to_owned() } else { format!("keys: {}", offer.keys.join(", ")) }
}

/// Returns the inputs that a component asks the trainer for, and a line per key.
fn in_full(registry: &Registry, offer: &Offer) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(inputs) = registry.inputs(offer).filter(|inputs| *inputs != Inputs::NONE) {
        lines.push(format!("asks for {}", input_names(inputs).join(", ")));
    }
    lines.push(if offer.keys.is_empty() { "no keys" } else { "keys:" }.to_owned());
    lines.extend(key_lines(&registry.key_docs(offer), &registry.sweeps(offer), &offer.keys));
    lines
}

/// Returns a line per key: its default, meaning and range for a search, as far as its author gave them.
fn key_lines(docs: &[KeyInfo], sweeps: &[SweepRange], keys: &[String]) -> Vec<String> {
    let range = |key: &String| {
        let range = sweeps.iter().find(|range| range.key.as_str() == key)?;
        let end = |end: f64| if range.whole { format!("{end}") } else { format!("{end:?}") };
        Some(format!("; search {}..{}", end(range.low), end(range.high)))
    };
    let line = |key: &String| match docs.iter().find(|doc| doc.name.as_str() == key) {
        None => format!("  {key}"),
        Some(doc) => {
            let default = match doc.default() {
                None => " (required)".to_owned(),
                Some("null") => String::new(),
                Some(value) => format!(" = {}", one_line(value)),
            };
            format!("  {key}{default}  # {}{}", one_line(&doc.about), range(key).unwrap_or_default())
        }
    };
    keys.iter().map(line).collect()
}

/// Names of the inputs, as the fields of a batch are called.
pub(crate) fn input_names(inputs: Inputs) -> Vec<&'static str> {
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
    let known = named.iter().filter(|(flag, _)| inputs.contains(*flag)).map(|(_, name)| *name);
    let unknown = (inputs.0 & !Inputs::KNOWN.0 != 0).then_some("something that this host does not know");
    known.chain(unknown).collect()
}
