//! Facts about a run besides its metrics, for checks and their advice.

use capo_loader::find::find;
use capo_loader::{ComponentConfig, LoadedPlugin, component_names, tables};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::config::{Config, DataConfig, EvalConfig, ModelConfig, RolloutConfig, TrainConfig, WarningsConfig};
use crate::model::{self, embedded};

/// Facts about a run besides its metrics. A section that is not known is `None`, and then there is no advice on it.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    pub(super) recipe: Option<String>,
    pub(super) model: Option<ModelConfig>,
    pub(super) data: Option<DataConfig>,
    pub(super) rollout: Option<RolloutConfig>,
    pub(super) train: Option<TrainConfig>,
    pub(super) eval: Option<EvalConfig>,
    pub(super) limits: WarningsConfig,
    pub(super) masks: Vec<ComponentConfig>,
    pub(super) weights: Vec<ComponentConfig>,
    pub(super) step_controls: Vec<ComponentConfig>,
    /// Number of the model's positions; `None` if it is unknown.
    pub(super) positions: Option<f64>,
    plugins: Vec<LoadedPlugin>,
}

impl Setup {
    /// Facts about a run with these settings and plugins.
    pub fn of(config: &Config, plugins: Vec<LoadedPlugin>) -> Self {
        let Config { recipe, model, data, rollout, train, eval, warnings, mask, weight, step_control, .. } =
            config.clone();
        let (model, data, rollout) = (Some(model), Some(data), Some(rollout));
        let (train, eval, limits) = (Some(train), Some(eval), warnings);
        let (masks, weights, step_controls) = (mask, weight, step_control);
        let setup = Self {
            recipe,
            model,
            data,
            rollout,
            train,
            eval,
            limits,
            masks,
            weights,
            step_controls,
            plugins,
            positions: None,
        };
        setup.with_positions()
    }

    /// Facts about a run with the settings in `table`, of which parts may be missing or damaged, and these plugins.
    pub fn read(table: &Table, plugins: Vec<LoadedPlugin>) -> Self {
        fn section<T: DeserializeOwned>(table: &Table, name: &str) -> Option<T> {
            table.get(name)?.clone().try_into().ok()
        }
        let list = |name: &str| tables::components(table, name, "").unwrap_or_default();
        let setup = Self {
            recipe: section(table, "recipe"),
            model: section(table, "model"),
            data: section(table, "data"),
            rollout: section(table, "rollout"),
            train: section(table, "train"),
            eval: section(table, "eval"),
            limits: section(table, "warnings").unwrap_or_default(),
            masks: list("mask"),
            weights: list("weight"),
            step_controls: list("step_control"),
            plugins,
            positions: None,
        };
        setup.with_positions()
    }

    fn with_positions(self) -> Self {
        // A model that cannot be read has its own error.
        let files = self.model.as_ref().and_then(|model| embedded::model_files(&model.model_name_or_path).ok());
        let model = files.and_then(|files| model::Config::load(&files).ok());
        Self { positions: model.map(|model| model.max_position_embeddings as f64), ..self }
    }

    /// `train.learning_rate`; `None` if it is unknown or 0.
    pub(super) fn learning_rate(&self) -> Option<f64> {
        self.train.as_ref().map(|train| train.learning_rate).filter(|rate| *rate > 0.0)
    }

    /// Value of `key` of the component that reports call `name`, in `[[section]]`.
    pub(super) fn key(&self, section: &str, name: &str, key: &str) -> Option<&Value> {
        self.component(section, name)?.table.get(key)
    }

    pub(super) fn component(&self, section: &str, name: &str) -> Option<&ComponentConfig> {
        let list = match section {
            "mask" => &self.masks,
            "weight" => &self.weights,
            _ => &self.step_controls,
        };
        list.get(component_names(list).iter().position(|known| known == name)?)
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
