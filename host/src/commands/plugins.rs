//! `host plugins`.

use anyhow::Result;
use capo_loader::offer::Offer;
use capo_loader::registry::Registry;
use capo_loader::trust::PIN;
use capo_plugin::abi_keys::KeyInfo;
use capo_plugin::abi_sweep::SweepRange;
use capo_plugin::{Inputs, Point};

use super::args::ListArgs;
use super::input_names::input_names;
use super::plugins_json;
use crate::report::terminal::say;

/// Where the second column begins.
const INDENT: usize = 27;

/// Lists components and recipes, as lines or as JSON, or pins.
pub(super) fn run(args: &ListArgs, verbose: bool) -> Result<()> {
    let registry = args.plugins.open()?;
    if args.hash {
        for plugin in registry.plugins() {
            say(&format!("{}{PIN}{}  {}", plugin.path.display(), plugin.sha256, plugin.packages.join(", ")));
        }
        return Ok(());
    }
    if args.json {
        say(&plugins_json::listing(&registry).to_string());
        return Ok(());
    }
    let mut point = None;
    for offer in registry.offers() {
        if point.replace(offer.point) != Some(offer.point) {
            let gap = if offer.point == Point::ALL[0] { "" } else { "\n" };
            say(&format!("{gap}{}", offer.point.name()));
        }
        say(&format!("  {:<24} {}", offer.id, offer.about));
        let detail = if verbose { in_full(&registry, offer) } else { vec![in_one_line(offer)] };
        for line in detail {
            say(&format!("{:INDENT$}{line}", ""));
        }
        say(&format!("{:INDENT$}from {}, {}", "", offer.package, offer.origin));
    }
    say("\nrecipe");
    for recipe in registry.recipes() {
        say(&format!("  {:<24} {} ({})", recipe.name, recipe.about, recipe.origin));
        if verbose {
            recipe.toml.trim().lines().for_each(|line| say(format!("{:INDENT$}{line}", "").trim_end()));
        }
    }
    Ok(())
}

/// The names of a component's keys.
fn in_one_line(offer: &Offer) -> String {
    if offer.keys.is_empty() { "no keys".to_owned() } else { format!("keys: {}", offer.keys.join(", ")) }
}

/// What a component asks the trainer for, and a line per key.
fn in_full(registry: &Registry, offer: &Offer) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(inputs) = registry.inputs(offer).filter(|inputs| *inputs != Inputs::NONE) {
        lines.push(format!("asks for {}", input_names(inputs).join(", ")));
    }
    lines.push(if offer.keys.is_empty() { "no keys" } else { "keys:" }.to_owned());
    lines.extend(key_lines(&registry.key_docs(offer), &registry.sweeps(offer), &offer.keys));
    lines
}

/// A line per key, with its default, what it means and between which values to search, where its author says so.
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
                Some(value) => format!(" = {value}"),
            };
            format!("  {key}{default}  # {}{}", doc.about, range(key).unwrap_or_default())
        }
    };
    keys.iter().map(line).collect()
}
