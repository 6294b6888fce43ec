//! A component's table in a config.

use serde::Serialize;
use toml::Table;

/// A component's table: `use` and its own keys.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComponentConfig {
    /// The component's id.
    #[serde(rename = "use")]
    pub id: String,
    /// All other keys, which the component reads.
    #[serde(flatten)]
    pub table: Table,
}

/// Names in reports for a list of components, such as a run's masks. A name is the component's id, or `ID#2` where an id is used
/// again, so that no report hides another.
#[must_use]
pub fn component_names(list: &[ComponentConfig]) -> Vec<String> {
    let name = |(index, one): (usize, &ComponentConfig)| match list[..index].iter().filter(|c| c.id == one.id).count() {
        0 => one.id.clone(),
        before => format!("{}#{}", one.id, before + 1),
    };
    list.iter().enumerate().map(name).collect()
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
