//! Facts about a run besides its metrics, for checks and their advice.

use capo_loader::find::find;
use capo_loader::{ComponentConfig, LoadedPlugin, component_names};
use host_model::embedded;
use serde::Deserialize;
use toml::Value;

use crate::config::{
    Config, DataConfig, EvalConfig, ModelConfig, RolloutConfig, TrainConfig, WarningsConfig,
};

/// Facts about a run besides its metrics.
#[derive(Debug, Clone)]
pub struct Setup {
    pub(super) settings: Settings,
    /// Number of the model's positions; `None` if it is unknown.
    pub(super) positions: Option<f64>,
    plugins: Vec<LoadedPlugin>,
}

/// The settings that checks and their advice read. If a section is unknown, there is no advice that
/// needs it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Settings {
    pub(super) recipe: Option<String>,
    pub(super) model: Option<ModelConfig>,
    pub(super) data: Option<DataConfig>,
    pub(super) rollout: Option<RolloutConfig>,
    pub(super) train: Option<TrainConfig>,
    pub(super) eval: Option<EvalConfig>,
    pub(super) warnings: WarningsConfig,
    pub mask: Vec<ComponentConfig>,
    pub weight: Vec<ComponentConfig>,
    pub step_control: Vec<ComponentConfig>,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        let Config {
            recipe,
            model,
            data,
            rollout,
            train,
            eval,
            warnings,
            mask,
            weight,
            step_control,
            ..
        } = config.clone();
        Self {
            recipe,
            model: Some(model),
            data: Some(data),
            rollout: Some(rollout),
            train: Some(train),
            eval: Some(eval),
            warnings,
            mask,
            weight,
            step_control,
        }
    }
}

impl Setup {
    /// Facts about a run with these settings and plugins.
    pub fn of(settings: Settings, plugins: Vec<LoadedPlugin>) -> Self {
        // If the model cannot be read, the run reports that itself.
        let files = settings
            .model
            .as_ref()
            .and_then(|model| embedded::model_files(&model.model_name_or_path).ok());
        let model = files.and_then(|files| host_model::Config::load(&files).ok());
        Self {
            settings,
            positions: model.map(|model| model.max_position_embeddings as f64),
            plugins,
        }
    }

    /// `train.learning_rate`; `None` if it is unknown or 0.
    pub(super) fn learning_rate(&self) -> Option<f64> {
        self.settings
            .train
            .as_ref()
            .map(|train| train.learning_rate)
            .filter(|rate| *rate > 0.0)
    }

    /// Value of `key` of the component of `[[section]]` whose name in reports is `name`.
    pub(super) fn key(&self, section: &str, name: &str, key: &str) -> Option<&Value> {
        self.component(section, name)?.table.get(key)
    }

    /// The component of `[[section]]` whose name in reports is `name`.
    pub(super) fn component(&self, section: &str, name: &str) -> Option<&ComponentConfig> {
        let list = match section {
            "mask" => &self.settings.mask,
            "weight" => &self.settings.weight,
            _ => &self.settings.step_control,
        };
        let names = component_names(list);
        let index = names.iter().position(|known| known == name)?;
        list.get(index)
    }

    /// The plugin with the component `id`, as `--plugin` takes it.
    pub(super) fn library(&self, id: &str) -> String {
        let vendor = id.split('.').next().unwrap_or(id);
        let usual = format!("lib{vendor}.so");
        let Some(plugin) = self
            .plugins
            .iter()
            .find(|plugin| plugin.components.iter().any(|one| one == id))
        else {
            return usual;
        };
        let name = plugin.path.file_name().map(std::path::Path::new);
        let found = name.filter(|name| find(name).is_ok_and(|found| found.path == plugin.path));
        found.unwrap_or(&plugin.path).display().to_string()
    }
}
