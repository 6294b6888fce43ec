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

/// Names of a list's components, such as a run's masks, in reports. The name is the component's id, or `ID#2` where an id is used
/// again, so that no report hides another.
#[must_use]
pub fn component_names(list: &[ComponentConfig]) -> Vec<String> {
    let name = |(index, one): (usize, &ComponentConfig)| match list[..index].iter().filter(|c| c.id == one.id).count() {
        0 => one.id.clone(),
        before => format!("{}#{}", one.id, before + 1),
    };
    list.iter().enumerate().map(name).collect()
}

/// The components of a run besides its rewards, as its settings name them.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// `[advantage]`
    pub advantage: &'a ComponentConfig,
    /// `[objective]`
    pub objective: &'a ComponentConfig,
    /// `[[mask]]`, in order.
    pub masks: &'a [ComponentConfig],
    /// `[[weight]]`, in order.
    pub weights: &'a [ComponentConfig],
    /// `[[step_control]]`, in order.
    pub step_controls: &'a [ComponentConfig],
}
