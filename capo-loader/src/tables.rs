//! Components' tables in a config, and their names in reports.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// A component's table: `use` and its own keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComponentConfig {
    /// The component's id.
    #[serde(rename = "use")]
    pub id: String,
    /// All other keys, which the component reads.
    #[serde(flatten)]
    pub table: Table,
}

/// Names in reports for a list of components, such as a run's masks. A name is the component's id,
/// or `ID#2` where an id is used again, so that no report hides another.
pub fn component_names(list: &[ComponentConfig]) -> Vec<String> {
    let mut names = Vec::with_capacity(list.len());
    for (index, one) in list.iter().enumerate() {
        let before = list[..index]
            .iter()
            .filter(|other| other.id == one.id)
            .count();
        names.push(match before {
            0 => one.id.clone(),
            before => format!("{}#{}", one.id, before + 1),
        });
    }
    names
}

/// The components of a run besides its rewards, as chosen in its settings.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// Table `[advantage]`.
    pub advantage: &'a ComponentConfig,
    /// Table `[objective]`.
    pub objective: &'a ComponentConfig,
    /// Tables `[[mask]]`, in order.
    pub masks: &'a [ComponentConfig],
    /// Tables `[[weight]]`, in order.
    pub weights: &'a [ComponentConfig],
    /// Tables `[[step_control]]`, in order.
    pub step_controls: &'a [ComponentConfig],
}

/// Parses a TOML text; messages name its `origin`.
///
/// # Errors
///
/// When the text is not TOML; the message has the line.
pub fn parse(text: &str, origin: &str) -> Result<Table> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error
            .span()
            .map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        anyhow::anyhow!("{origin} is not TOML: line {line}: {}", error.message())
    })
}

/// The entries of the list `section`; empty if it is absent.
///
/// # Errors
///
/// When `section` is one table instead of a list.
pub fn list(table: &Table, section: &str, origin: &str) -> Result<Vec<Value>> {
    match table.get(section) {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => Ok(values.clone()),
        Some(_) => bail!(
            "`[{section}]` in {origin} is one table (write `[[{section}]]`: there can be several)"
        ),
    }
}

/// The components of the list `section`, such as `mask`.
///
/// # Errors
///
/// The errors of [`list`] and [`component`].
pub fn components(table: &Table, section: &str, origin: &str) -> Result<Vec<ComponentConfig>> {
    let shown = format!("[[{section}]]");
    let values = list(table, section, origin)?.into_iter();
    values
        .map(|value| component(&shown, value, origin))
        .collect()
}

/// A component's table; `section` is its name in messages, such as `[[mask]]`.
///
/// # Errors
///
/// When the value is not a table, or the table lacks `use`.
pub fn component(section: &str, value: Value, origin: &str) -> Result<ComponentConfig> {
    let Value::Table(mut table) = value else {
        bail!("`{section}` in {} is not a table", origin)
    };
    match table.remove("use") {
        Some(Value::String(id)) => Ok(ComponentConfig { id, table }),
        Some(other) => {
            bail!(
                "`use` of `{section}` in {} is {other} (give a component's id as a string)",
                origin
            )
        }
        None => {
            bail!(
                "`{section}` in {} has no `use` (give a component's id; `host plugins` lists them)",
                origin
            )
        }
    }
}
