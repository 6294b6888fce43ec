//! The arguments of `host check`, and which component a `--set` is for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use toml::Value;

use super::task::Component;
use crate::config::{parse_set, set};

/// The arguments of `host check`.
#[derive(Args)]
pub struct CheckArgs {
    /// Libraries, which are searched as for `--plugin`. [default: the built-in components]
    #[arg(value_name = "LIB")]
    pub library: Vec<PathBuf>,
    /// Prints one JSON object instead of lines.
    #[arg(long)]
    pub json: bool,
    /// Lists the checks by name, each with its question.
    #[arg(long)]
    pub list: bool,
    /// Makes only this check. Repeatable.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// A key of a component that needs it, as in `example.surprise-cap.max_nats=5`. Repeatable.
    #[arg(long, value_name = "COMPONENT.KEY=VALUE")]
    pub set: Vec<String>,
    /// A JSONL dataset for rewards that read its columns. [default: generated additions]
    #[arg(long, value_name = "FILE")]
    pub rows: Option<PathBuf>,
    /// Also runs N random batches or rollouts through each component.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub fuzz: u64,
    /// Seed of the random inputs.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Runs one random input again, by the name that `--fuzz` printed.
    #[arg(long, value_name = "CASE")]
    pub reproduce: Option<String>,
    /// Time limit of one check, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub timeout: u64,
    /// For `host check` itself: makes the checks of a library in this process.
    #[arg(long, hide = true, value_name = "SETUP")]
    pub work: Option<String>,
}

impl CheckArgs {
    /// True if this check is to run.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == name)
    }

    /// Longest time of one check.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Puts each `component.key=value` into the table of its component.
pub fn apply<'a>(
    sets: &[String],
    components: impl Iterator<Item = &'a mut Component>,
) -> Result<()> {
    let mut components: Vec<&mut Component> = components.collect();
    for text in sets {
        let (path, value) = parse_set(text)?;
        // Components get their tables as JSON, which has no number for `nan` and `inf`, so these
        // become strings.
        let value = match value {
            Value::Float(number) if !number.is_finite() => {
                Value::String(text[text.find('=').unwrap_or(0) + 1..].into())
            }
            other => other,
        };
        let owners = components.iter_mut().filter_map(|component| {
            let key = path.strip_prefix(&component.id)?.strip_prefix('.')?;
            Some((key.to_owned(), component))
        });
        // The longest id, in case one id begins with another.
        let Some((key, component)) = owners.max_by_key(|(_, component)| component.id.len()) else {
            bail!(
                "`--set {text}` names no component (write `--set COMPONENT.KEY=VALUE` with one of \
                 {})",
                ids(&components)
            );
        };
        let mut table = toml::Table::try_from(&component.table).context("a component's table")?;
        set(&mut table, &key, value)?;
        component.table = serde_json::from_value(serde_json::to_value(table)?)?;
    }
    Ok(())
}

fn ids(components: &[&mut Component]) -> String {
    components
        .iter()
        .map(|component| format!("`{}`", component.id))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Refuses the id of a component that does not exist.
pub fn known<'a>(id: &str, components: impl Iterator<Item = &'a Component>) -> Result<()> {
    let ids: Vec<&str> = components.map(|component| component.id.as_str()).collect();
    if ids.contains(&id) {
        return Ok(());
    }
    let hint = capo_plugin::nearest(id, ids.iter().copied()).map_or_else(
        || format!("known: `{}`", ids.join("`, `")),
        |near| format!("did you mean `{near}`?"),
    );
    bail!("`--reproduce` names `{id}`, which the library does not offer ({hint})");
}
