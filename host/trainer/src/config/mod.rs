//! The run's settings: a TOML file, `--set` overrides, and a recipe for the components that the
//! file does not name.

mod aliases;
pub mod check;
mod data;
mod datasets;
mod draft;
mod environment;
mod error;
mod eval;
mod hints;
mod logging;
mod model;
pub mod names;
mod read;
mod recipe;
mod replayed;
mod rollout;
mod sets;
pub mod setting;
mod sizes;
mod train;
mod trl;
mod warnings;

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Result;
use capo_loader::{Choice, ComponentConfig, component_names};
use host_model::device::Dtype;
use host_model::{Truncation, hub};
use serde::Serialize;
use toml::Table;

use crate::reward::{self, RewardConfig};

pub use data::{DataConfig, Format, SourceConfig};
pub use draft::{Appended, Draft, component_timeout};
pub use environment::{EnvironmentConfig, EpisodeConfig};
pub use error::ConfigError;
pub use eval::{ANSWERS_AT_ONCE, BenchmarkConfig, EvalConfig, TEST};
pub use logging::{CompletionsFormat, ComponentMetrics, LoggingConfig, Tracker};
pub use model::{ModelConfig, TargetModules};
pub use recipe::{Resolved, resolve};
pub use replayed::replayed_settings;
pub use rollout::RolloutConfig;
pub use sets::{parse_set, set};
pub use setting::{Expected, Setting, Settings};
pub use sizes::Sizes;
pub use train::{LossDistribution, MaskDenominator, TrainConfig};
pub use trl::TrlConfig;
pub use warnings::WarningsConfig;

/// The settings of `host train` without `--config`; they are also the defaults for a config that
/// holds only components.
pub const DEFAULT: &str = include_str!("../../../../configs/tiny/default.toml");

/// A search for a name among the ids of the Hub's cache; `None` if it is not there.
type Find = fn(&str) -> Result<Option<PathBuf>>;

/// All settings of a run, a field for each section.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// Name of the recipe that chose the components that the file did not name.
    pub recipe: Option<String>,
    pub model: ModelConfig,
    pub data: DataConfig,
    pub rollout: RolloutConfig,
    pub train: TrainConfig,
    pub eval: EvalConfig,
    pub logging: LoggingConfig,
    pub warnings: WarningsConfig,
    pub advantage: ComponentConfig,
    pub objective: ComponentConfig,
    /// Sections `[[mask]]`, in order.
    pub mask: Vec<ComponentConfig>,
    /// Sections `[[weight]]`, in order.
    pub weight: Vec<ComponentConfig>,
    /// Sections `[[step_control]]`, in order.
    pub step_control: Vec<ComponentConfig>,
    /// Section `[environment]`; `None` if a completion is one turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentConfig>,
    /// Sections `[[reward]]`; the rewards are summed.
    pub reward: Vec<RewardConfig>,
    /// Sizes of the run, computed when the settings are checked.
    #[serde(skip)]
    pub sizes: Sizes,
}

impl Config {
    /// Names in reports of the run's components: environment, rewards, advantage, objective, masks,
    /// weights, step controls.
    pub fn component_ids(&self) -> Vec<String> {
        let rewards = reward::names(&self.reward);
        let others = [&self.advantage, &self.objective].map(|component| component.id.clone());
        let lists = [&self.mask, &self.weight, &self.step_control]
            .into_iter()
            .flat_map(|list| component_names(list));
        let environment = self
            .environment
            .iter()
            .map(|environment| environment.component.id.clone());
        environment
            .chain(rewards)
            .chain(others)
            .chain(lists)
            .collect()
    }

    /// Sentences about masks, weights and step controls that are named more than once.
    pub fn named_twice(&self) -> Vec<String> {
        let lists = [
            (
                "mask",
                &self.mask,
                "a token counts only where each of them keeps it",
            ),
            (
                "weight",
                &self.weight,
                "a token counts by the product of their weights",
            ),
            (
                "step control",
                &self.step_control,
                "each shortens what the one before left of a step",
            ),
        ];
        let recipe = match &self.recipe {
            Some(recipe) => format!("; the recipe `{recipe}` may bring one"),
            None => String::new(),
        };
        let mut sentences = Vec::new();
        for (point, list, effect) in lists {
            let again = component_names(list)
                .into_iter()
                .find_map(|name| Some(name.split_once('#')?.0.to_owned()));
            let Some(again) = again else { continue };
            sentences.push(format!(
                "the {point} `{again}` is named more than once: {effect} (leave out what is not \
                 meant{recipe})"
            ));
        }
        sentences
    }

    /// All settings as TOML. A line lists those that have no value.
    pub fn in_full(&self) -> Result<String> {
        let text = toml::to_string(self)?;
        let table: Table = text.parse()?;
        let mut unset = Vec::new();
        for (section, settings) in sections() {
            if section == "environment" && self.environment.is_none() {
                continue;
            }
            let given = table.get(section);
            for Setting { name, .. } in settings {
                if given.and_then(|section| section.get(name)).is_none() {
                    unset.push(format!("{section}.{name}"));
                }
            }
        }
        Ok(format!("{text}\n# not set: {}", unset.join(", ")))
    }

    /// Refuses invalid benchmarks, and an `eval.reward` that the run does not have.
    pub fn check_eval(&self) -> Result<()> {
        self.eval
            .check(&reward::names(&self.reward), self.data.preset)
    }

    /// Number of evaluations after the steps of `range`, which begins with the number of steps done
    /// before it.
    pub fn evaluations(&self, range: Range<u64>) -> u64 {
        let every = self.eval.eval_steps;
        let last = self.train.max_steps;
        let [start, end, of_run] =
            [range.start, range.end, last].map(|step| step.checked_div(every).unwrap_or(0));
        let at_the_end = range.end >= last && of_run * every < last;
        end - start + u64::from(at_the_end)
    }

    /// Floating-point type of the sampler.
    pub fn sampler_dtype(&self) -> Dtype {
        self.rollout.dtype.unwrap_or(self.train.dtype)
    }

    /// Number of whole completions that the sampler's KV cache has room for.
    pub fn cached_completions(&self) -> usize {
        match self.rollout.max_num_seqs {
            0 => self.sizes.rollout,
            most => most.min(self.sizes.rollout),
        }
    }

    /// True if completions are drawn from another distribution than that of the loss.
    pub fn sampler_differs(&self) -> bool {
        let RolloutConfig {
            temperature,
            top_k,
            top_p,
            ..
        } = self.rollout;
        self.sampler_dtype() != self.train.dtype
            || top_k > 0
            || top_p < 1.0
            || temperature != self.train.loss_temperature as f32
    }

    /// Truncation of the distribution of the loss's log-probabilities; `None` for the whole
    /// distribution.
    pub fn loss_truncation(&self) -> Option<Truncation> {
        let RolloutConfig {
            temperature,
            top_k,
            top_p,
            ..
        } = self.rollout;
        let truncation = Truncation {
            temperature: f64::from(temperature),
            top_k,
            top_p: f64::from(top_p),
        };
        (self.train.loss_distribution == LossDistribution::Sampler).then_some(truncation)
    }

    /// The run's components besides its rewards.
    pub fn choice(&self) -> Choice<'_> {
        Choice {
            advantage: &self.advantage,
            objective: &self.objective,
            masks: &self.mask,
            weights: &self.weight,
            step_controls: &self.step_control,
        }
    }

    /// Makes the paths of models and data absolute, so that the run can be resumed from any
    /// directory.
    ///
    /// An id of the Hub becomes the path of its newest snapshot. The date is set to today if a chat
    /// template may need it.
    pub fn make_paths_absolute(&mut self) -> Result<()> {
        self.paths()
            .try_for_each(|(name, find)| make_absolute(name, find))?;
        if self.data.format == Format::Chat {
            self.data.date.get_or_insert_default();
        }
        Ok(())
    }

    /// Names of the models and data that are read, each with the search for one that is an id of
    /// the Hub.
    pub fn paths(&mut self) -> impl Iterator<Item = (&mut String, Find)> {
        let Self {
            model,
            data,
            reward,
            eval,
            ..
        } = self;
        let models = reward
            .iter_mut()
            .filter_map(RewardConfig::model_name_or_path);
        let models = models
            .chain([&mut model.model_name_or_path])
            .chain(&mut model.ref_model_name_or_path);
        let files = eval
            .benchmark
            .iter_mut()
            .map(|benchmark| &mut benchmark.file);
        let files = files.chain(data.datasets.iter_mut().map(|one| &mut one.path));
        let files = files
            .chain([&mut data.dataset_name])
            .chain(&mut data.eval_dataset_name);
        let templates = data.chat_template.iter_mut();
        models
            .map(|name| (name, hub::find as Find))
            .chain(files.map(|name| (name, hub::find_dataset as Find)))
            .chain(templates.map(|name| (name, (|_| Ok(None)) as Find)))
    }
}

/// The sections of a run that consist of one table, with their settings.
pub fn sections() -> [(&'static str, &'static [Setting]); 8] {
    [
        ("model", ModelConfig::SETTINGS),
        ("data", DataConfig::SETTINGS),
        ("rollout", RolloutConfig::SETTINGS),
        ("train", TrainConfig::SETTINGS),
        ("eval", EvalConfig::SETTINGS),
        ("logging", LoggingConfig::SETTINGS),
        ("warnings", WarningsConfig::SETTINGS),
        ("environment", EpisodeConfig::SETTINGS),
    ]
}

/// All settings of a run, each with its section; those of TRL's come last, which become components.
pub fn settings() -> impl Iterator<Item = (&'static str, &'static Setting)> {
    let of_trl = ("train", TrlConfig::SETTINGS);
    sections()
        .into_iter()
        .chain([of_trl])
        .flat_map(|(section, settings)| settings.iter().map(move |one| (section, one)))
}

/// The default of `section.key`, as TOML.
pub fn default_of(path: &str) -> Option<String> {
    let (_, setting) = settings()
        .find(|(section, setting)| path.split_once('.') == Some((section, setting.name)))?;
    Some(setting.default()?.to_string())
}

/// Makes a path absolute. An id of the Hub becomes the path that `find` has for it.
fn make_absolute(name: &mut String, find: Find) -> Result<()> {
    if let (false, Some(snapshot)) = (Path::new(name).exists(), find(name)?) {
        *name = snapshot.to_string_lossy().into_owned();
    }
    if Path::new(name).exists() {
        *name = std::path::absolute(&*name)?.to_string_lossy().into_owned();
    }
    Ok(())
}
