//! `capo-plugin` as a separate folder whose manifest needs no workspace, as `cargo package` would
//! make it. With it, a plugin's crate builds on a machine without a checkout.

use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

/// Place of the folder in a new crate.
pub(super) const FOLDER: &str = "vendor/capo-plugin";

/// Files of `capo-plugin` with their paths, except tests and benches.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/capo_plugin.rs"));

/// Manifest of the workspace of `capo-plugin`.
const WORKSPACE: &str = include_str!("../../../Cargo.toml");

/// Writes the crate into `folder`.
pub(super) fn write(folder: &Path) -> Result<()> {
    for (name, text) in FILES {
        let path = folder.join(name);
        let text = if name.ends_with("Cargo.toml") {
            manifest(text)?
        } else {
            (*text).to_owned()
        };
        std::fs::create_dir_all(path.parent().unwrap_or(folder))
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(())
}

/// The manifest with the workspace's values filled in, and without the parts for tests and benches.
fn manifest(text: &str) -> Result<String> {
    let mut own: Table = text.parse()?;
    let manifest: Table = WORKSPACE.parse()?;
    let shared = manifest
        .get("workspace")
        .context("the workspace's manifest has no `[workspace]`")?;
    for name in ["dev-dependencies", "bench", "test", "example"] {
        own.remove(name);
    }
    for section in ["package", "dependencies"] {
        if let (Some(Value::Table(table)), Some(shared)) =
            (own.get_mut(section), shared.get(section))
        {
            for (key, value) in table.iter_mut().filter(|(_, value)| inherits(value)) {
                *value = shared
                    .get(key)
                    .with_context(|| format!("the workspace has no `{section}.{key}`"))?
                    .clone();
            }
        }
    }
    if own.get("lints").is_some_and(inherits) {
        own.insert(
            "lints".into(),
            shared
                .get("lints")
                .context("the workspace has no lints")?
                .clone(),
        );
    }
    let remark =
        "# Made by `host new-plugin` from the manifest of a crate whose workspace is not here.\n\n";
    Ok(remark.to_owned() + &toml::to_string(&own)?)
}

/// True if a value is `{ workspace = true }`.
fn inherits(value: &Value) -> bool {
    value
        .get("workspace")
        .and_then(Value::as_bool)
        .unwrap_or(false)
}
