//! Facts about a run besides its metrics, for checks and their advice.

use std::collections::BTreeMap;

use capo_loader::find::find;
use capo_loader::{ComponentConfig, LoadedPlugin, component_names};
use toml::Table;

use crate::config::WarningsConfig;
use crate::model::{Config, embedded};

/// Facts about a run besides its metrics.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Section `[warnings]`.
    pub(super) limits: WarningsConfig,
    /// Number of the model's positions; `None` if it is unknown.
    pub(super) positions: Option<f64>,
    settings: BTreeMap<String, String>,
    plugins: Vec<LoadedPlugin>,
}

impl Setup {
    /// Facts about a run with these settings, by dotted keys with values as in TOML, and these plugins.
    pub fn of(settings: &BTreeMap<String, String>, plugins: Vec<LoadedPlugin>) -> Self {
        let limits = settings.iter().filter_map(|(key, value)| Some((key.strip_prefix("warnings.")?, value)));
        let limits: String = limits.map(|(key, value)| format!("{key} = {value}\n")).collect();
        let limits = toml::from_str(&limits).unwrap_or_default();
        let setup = Self { limits, positions: None, settings: settings.clone(), plugins };
        // A model that cannot be read has its own error.
        let files = setup.text("model.model_name_or_path").and_then(|model| embedded::model_files(model).ok());
        let model = files.and_then(|files| Config::load(&files).ok());
        Self { positions: model.map(|model| model.max_position_embeddings as f64), ..setup }
    }

    /// `train.learning_rate`; `None` if it is unknown or 0.
    pub(super) fn learning_rate(&self) -> Option<f64> {
        self.number("train.learning_rate").filter(|rate| *rate > 0.0)
    }

    pub(super) fn number(&self, key: &str) -> Option<f64> {
        self.settings.get(key)?.parse().ok()
    }

    /// Value of the setting `key` without quotes.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|value| value.trim_matches('"'))
    }

    pub(super) fn is(&self, key: &str, value: &str) -> bool {
        self.text(key) == Some(value)
    }

    /// Names in reports of the components of `[[section]]`.
    pub(super) fn names(&self, section: &str) -> Vec<String> {
        let id = |number: u32| self.text(&format!("{section}.{number}.use")).map(str::to_owned);
        let list = (0..).map_while(id).map(|id| ComponentConfig { id, table: Table::new() });
        component_names(&list.collect::<Vec<_>>())
    }

    /// Value of a component's `key`, as in TOML.
    pub(super) fn key(&self, section: &str, name: &str, key: &str) -> Option<&str> {
        let number = self.names(section).iter().position(|known| known == name)?;
        self.settings.get(&format!("{section}.{number}.{key}")).map(String::as_str)
    }

    /// The plugin with the component `id`, as `--plugin` takes it.
    pub(super) fn library(&self, id: &str) -> String {
        let vendor = id.split('.').next().unwrap_or(id);
        let usual = format!("lib{vendor}.so");
        let Some(plugin) = self.plugins.iter().find(|plugin| plugin.components.iter().any(|one| one == id)) else {
            return usual;
        };
        let name = plugin.path.file_name().map(std::path::Path::new);
        let found = name.filter(|name| find(name).is_ok_and(|path| path == plugin.path));
        found.unwrap_or(&plugin.path).display().to_string()
    }
}
