//! A component's table in a config.

use serde::Serialize;
use toml::Table;

/// A component's table: `use` and its own keys.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComponentConfig {
    /// The component's id.
    #[serde(rename = "use")]
    pub id: String,
    /// Everything else, for the component to read.
    #[serde(flatten)]
    pub table: Table,
}

/// What each mask is called in reports: its id, and `ID#2` where one is used again, so that no report hides another.
#[must_use]
pub fn mask_names(masks: &[ComponentConfig]) -> Vec<String> {
    let name =
        |(index, mask): (usize, &ComponentConfig)| match masks[..index].iter().filter(|m| m.id == mask.id).count() {
            0 => mask.id.clone(),
            before => format!("{}#{}", mask.id, before + 1),
        };
    masks.iter().enumerate().map(name).collect()
}
