//! The run's settings: a TOML file, `--set` overrides, a recipe for the components that the file does not name.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::data::{Columns, Dataset};
use crate::optim::ScheduleKind;
use crate::reward::RewardConfig;

/// The settings of `host train` when no `--config` is given.
pub const DEFAULT: &str = include_str!("../../configs/tiny/default.toml");

/// The sections that recipes fill in and that belong to components.
const COMPONENT_SECTIONS: [&str; 3] = ["advantage", "objective", "mask"];

/// All settings of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// Which recipe chose the components that the file did not name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// `[model]`
    pub model: ModelConfig,
    /// `[data]`
    pub data: DataConfig,
    /// `[rollout]`
    pub rollout: RolloutConfig,
    /// `[train]`
    pub train: TrainConfig,
    /// `[eval]`
    pub eval: EvalConfig,
    /// `[logging]`
    pub logging: LoggingConfig,
    /// `[advantage]`
    pub advantage: ComponentConfig,
    /// `[objective]`
    pub objective: ComponentConfig,
    /// `[[mask]]`, in order
    pub mask: Vec<ComponentConfig>,
    /// `[[reward]]`; rewards are summed
    pub reward: Vec<RewardConfig>,
}

/// `[model]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// A Hugging Face directory, or `embedded:tiny-arithmetic`.
    pub model_name_or_path: String,
}

/// `[data]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A JSONL file, or `embedded:arithmetic`.
    pub dataset_name: String,
    /// A JSONL file of held-out prompts; not used with `embedded:arithmetic`, which has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_dataset_name: Option<String>,
    /// Column of the prompt text.
    #[serde(default = "prompt_column")]
    pub prompt_column: String,
    /// Column of the expected answer.
    #[serde(default = "answer_column")]
    pub answer_column: String,
    /// Column of the worked solution, for `host sft`; the answer stands in where a row has none.
    #[serde(default = "solution_column")]
    pub solution_column: String,
    /// Longer prompts are an error, tokens.
    #[serde(default = "max_prompt_length")]
    pub max_prompt_length: usize,
}

fn prompt_column() -> String {
    "prompt".into()
}

fn answer_column() -> String {
    "answer".into()
}

fn solution_column() -> String {
    "solution".into()
}

fn max_prompt_length() -> usize {
    512
}

impl DataConfig {
    /// Opens the dataset, its training order drawn from `seed`.
    ///
    /// # Errors
    ///
    /// When there is no such dataset, or a row of it lacks a column.
    pub fn open(&self, seed: u64) -> Result<Dataset> {
        let columns = Columns {
            prompt: self.prompt_column.clone(),
            answer: self.answer_column.clone(),
            solution: self.solution_column.clone(),
        };
        Dataset::open(&self.dataset_name, self.eval_dataset_name.as_deref().map(Path::new), &columns, seed)
    }
}

/// `[rollout]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutConfig {
    /// G: completions per prompt.
    pub num_generations: usize,
    /// Longest completion, tokens.
    pub max_completion_length: usize,
    /// Divides the logits; 1 samples from the model itself.
    pub temperature: f32,
    /// Sample among the most likely tokens; 0 is off.
    pub top_k: usize,
    /// Sample among the most likely tokens of this total probability; 1 is off.
    pub top_p: f32,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self { num_generations: 8, max_completion_length: 256, temperature: 1.0, top_k: 0, top_p: 1.0 }
    }
}

/// `[train]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Source of every random choice.
    pub seed: u64,
    /// Optimizer steps.
    pub max_steps: u64,
    /// Completions of one backward pass (a micro-batch).
    pub per_device_train_batch_size: usize,
    /// Micro-batches of one optimizer step.
    pub gradient_accumulation_steps: usize,
    /// Micro-batches of one rollout; `gradient_accumulation_steps` when 0.
    pub steps_per_generation: usize,
    /// How often a rollout is used.
    pub num_iterations: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// `cosine`, `linear`, `constant` or `constant_with_warmup`.
    pub lr_scheduler_type: ScheduleKind,
    /// Share of `max_steps` over which the learning rate rises from 0.
    pub warmup_ratio: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Decay of Adam's first moment.
    pub adam_beta1: f64,
    /// Decay of Adam's second moment.
    pub adam_beta2: f64,
    /// Added to the root of Adam's second moment.
    pub adam_epsilon: f64,
    /// Largest global gradient norm; 0 is off.
    pub max_grad_norm: f64,
    /// Divides the logits in the loss.
    pub loss_temperature: f64,
    /// What a loss is averaged over after masking: `kept` tokens or the `original` ones.
    pub mask_denominator: Denominator,
    /// K of the last-layer inputs; 0 takes the sampler's `top_k`, or 50 where that is off.
    pub last_layer_top_k: usize,
    /// Checkpoint interval in optimizer steps; 0 writes one at the end only.
    pub save_steps: u64,
    /// Older checkpoints are deleted; 0 keeps all.
    pub save_total_limit: usize,
    /// Where runs go; each makes a folder of its own unless this names one that does not exist yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_dir: Option<PathBuf>,
}

/// What a loss is averaged over after masking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Denominator {
    /// The tokens that the masks keep: survivors weigh more.
    Kept,
    /// All completion tokens: a rejected token is a zero.
    Original,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            seed: 42,
            max_steps: 100,
            per_device_train_batch_size: 8,
            gradient_accumulation_steps: 1,
            steps_per_generation: 0,
            num_iterations: 1,
            learning_rate: 1e-6,
            lr_scheduler_type: ScheduleKind::Linear,
            warmup_ratio: 0.0,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            max_grad_norm: 1.0,
            loss_temperature: 1.0,
            mask_denominator: Denominator::Kept,
            last_layer_top_k: 0,
            save_steps: 0,
            save_total_limit: 0,
            output_dir: None,
        }
    }
}

/// `[eval]`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Held-out prompts, answered greedily before and after training; 0 is off.
    pub num_prompts: usize,
    /// Evaluate every so many optimizer steps as well; 0 is off.
    pub eval_steps: u64,
}

/// `[logging]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// A line on the terminal every so many steps.
    pub logging_steps: u64,
    /// Write every completion with its reward to `completions.jsonl`.
    pub log_completions: bool,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self { logging_steps: 10, log_completions: false }
    }
}

/// A component's table: `use` and its own keys.
#[derive(Debug, Clone, Serialize)]
pub struct ComponentConfig {
    /// The component's id.
    #[serde(rename = "use")]
    pub id: String,
    /// Everything else, for the component to read.
    #[serde(flatten)]
    pub table: Table,
}

impl TrainConfig {
    /// Completions of one optimizer step.
    #[must_use]
    pub fn step_batch_size(&self) -> usize {
        self.per_device_train_batch_size * self.gradient_accumulation_steps
    }

    /// Completions of one rollout.
    #[must_use]
    pub fn rollout_size(&self) -> usize {
        let steps =
            if self.steps_per_generation == 0 { self.gradient_accumulation_steps } else { self.steps_per_generation };
        self.per_device_train_batch_size * steps
    }

    /// Optimizer steps made from one rollout.
    #[must_use]
    pub fn steps_per_rollout(&self) -> u64 {
        (self.rollout_size() / self.step_batch_size() * self.num_iterations) as u64
    }
}

/// A config before its components are chosen.
#[derive(Debug)]
pub struct Draft {
    table: Table,
    origin: String,
    sets: Vec<(String, Value)>,
}

impl Draft {
    /// Reads a config file, or the text `default`, and the `--set section.key=value` overrides.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is not TOML, or an override is not of that form.
    pub fn read(path: Option<&Path>, default: &str, sets: &[String]) -> Result<Self> {
        let (text, origin) = match path {
            None => (default.to_owned(), "the default config".to_owned()),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("config `{}` cannot be read", path.display()))?;
                (text, format!("`{}`", path.display()))
            }
        };
        let table = text.parse::<Table>().with_context(|| format!("{origin} is not TOML"))?;
        let sets = sets.iter().map(|set| parse_set(set)).collect::<Result<_>>()?;
        let mut draft = Self { table, origin, sets };
        draft.apply_sets(false)?;
        Ok(draft)
    }

    /// The recipe that the config names.
    ///
    /// # Errors
    ///
    /// When `recipe` is not a string.
    pub fn recipe(&self) -> Result<Option<&str>> {
        match self.table.get("recipe") {
            None => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(other) => bail!("`recipe` in {} is {other} (give a recipe's name as a string)", self.origin),
        }
    }

    /// Whether the config itself chooses both components that a run cannot do without.
    #[must_use]
    pub fn names_components(&self) -> bool {
        self.table.contains_key("advantage") && self.table.contains_key("objective")
    }

    /// Takes the component sections that the config does not have from a recipe.
    ///
    /// # Errors
    ///
    /// When the recipe is not TOML, or holds anything but component sections.
    pub fn merge_recipe(&mut self, name: &str, text: &str) -> Result<()> {
        let recipe = text.parse::<Table>().with_context(|| format!("recipe `{name}` is not TOML"))?;
        for (section, value) in recipe {
            if !COMPONENT_SECTIONS.contains(&section.as_str()) {
                bail!(
                    "recipe `{name}` has a section `{section}` (a recipe holds `advantage`, `objective` and `mask` only)"
                );
            }
            self.table.entry(section).or_insert(value);
        }
        self.table.insert("recipe".into(), Value::String(name.into()));
        Ok(())
    }

    /// Checks every key and reads the sections.
    ///
    /// # Errors
    ///
    /// An unknown key with the nearest known one, a value of the wrong type, a missing section, settings that do not fit
    /// together.
    pub fn finish(mut self) -> Result<Config> {
        self.apply_sets(true)?;
        self.only(&[
            "recipe",
            "model",
            "data",
            "rollout",
            "train",
            "eval",
            "logging",
            "advantage",
            "objective",
            "mask",
            "reward",
        ])?;
        let config = Config {
            recipe: self.recipe()?.map(str::to_owned),
            model: self.section("model")?,
            data: self.section("data")?,
            rollout: self.section("rollout")?,
            train: self.section("train")?,
            eval: self.section("eval")?,
            logging: self.section("logging")?,
            advantage: self.component("advantage")?,
            objective: self.component("objective")?,
            mask: self
                .list("mask")?
                .into_iter()
                .map(|value| self.to_component("[[mask]]", value))
                .collect::<Result<_>>()?,
            reward: self
                .list("reward")?
                .into_iter()
                .map(|value| self.read_section("[[reward]]", value))
                .collect::<Result<_>>()?,
        };
        check(&config).with_context(|| format!("the settings of {} do not fit together", self.origin))?;
        Ok(config)
    }

    /// Refuses sections other than `known`.
    ///
    /// # Errors
    ///
    /// The first unknown section, with the nearest known one.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            Some(unknown) => bail!("{}: {}", self.origin, capo_plugin::unknown_key(unknown, known)),
            None => Ok(()),
        }
    }

    fn apply_sets(&mut self, components: bool) -> Result<()> {
        for (path, value) in &self.sets {
            let first = path.split('.').next().unwrap_or_default();
            if COMPONENT_SECTIONS.contains(&first) == components {
                set(&mut self.table, path, value.clone())?;
            }
        }
        Ok(())
    }

    /// Reads one section; an absent one is empty.
    ///
    /// # Errors
    ///
    /// An unknown key with the nearest known one, a value of the wrong type, a missing key.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.table.get(name).cloned().unwrap_or_else(|| Value::Table(Table::new()));
        self.read_section(&format!("[{name}]"), value)
    }

    fn read_section<T: DeserializeOwned>(&self, name: &str, value: Value) -> Result<T> {
        if let (Value::Table(table), Some(known)) = (&value, capo_plugin::known_keys::<T>())
            && let Some(unknown) = table.keys().find(|key| !known.contains(&key.as_str()))
        {
            bail!("`{name}` of {}: {}", self.origin, capo_plugin::unknown_key(unknown, known));
        }
        value.try_into().map_err(|error: toml::de::Error| {
            anyhow::anyhow!("`{name}` of {}: {}", self.origin, error.to_string().trim().replace('\n', ", "))
        })
    }

    fn list(&self, name: &str) -> Result<Vec<Value>> {
        match self.table.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) => Ok(values.clone()),
            Some(_) => bail!("`[{name}]` in {} is one table (write `[[{name}]]`: there can be several)", self.origin),
        }
    }

    fn component(&self, section: &str) -> Result<ComponentConfig> {
        match self.table.get(section) {
            None => bail!(
                "{} has no `[{section}]` (name a component with `use = \"...\"`, or take a whole recipe with `recipe = \"grpo\"`)",
                self.origin
            ),
            Some(value) => self.to_component(&format!("[{section}]"), value.clone()),
        }
    }

    fn to_component(&self, section: &str, value: Value) -> Result<ComponentConfig> {
        let Value::Table(mut table) = value else { bail!("`{section}` in {} is not a table", self.origin) };
        match table.remove("use") {
            Some(Value::String(id)) => Ok(ComponentConfig { id, table }),
            Some(other) => {
                bail!("`use` of `{section}` in {} is {other} (give a component's id as a string)", self.origin)
            }
            None => {
                bail!("`{section}` in {} has no `use` (give a component's id; `host plugins` lists them)", self.origin)
            }
        }
    }
}

fn parse_set(text: &str) -> Result<(String, Value)> {
    let Some((path, value)) = text.split_once('=') else {
        bail!("`--set {text}` has no `=` (write `--set section.key=value`)");
    };
    // A bare word is a string: `--set train.lr_scheduler_type=constant`.
    let value = format!("v = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("v"));
    let bare = || Value::String(text[path.len() + 1..].to_owned());
    Ok((path.trim().to_owned(), value.unwrap_or_else(bare)))
}

fn set(table: &mut Table, path: &str, value: Value) -> Result<()> {
    let (last, parents) = path
        .split('.')
        .collect::<Vec<_>>()
        .split_last()
        .map(|(last, parents)| (*last, parents.to_vec()))
        .unwrap_or_default();
    if last.is_empty() || parents.iter().any(|part| part.is_empty()) {
        bail!("`--set {path}=...` has an empty key (write `--set section.key=value`)");
    }
    let mut here = table;
    let mut parts = parents.into_iter().peekable();
    while let Some(part) = parts.next() {
        let next = here.entry(part).or_insert_with(|| Value::Table(Table::new()));
        here = match next {
            Value::Table(inner) => inner,
            Value::Array(items) => {
                let (index, count) = (parts.next().unwrap_or_default(), items.len());
                let item = index.parse::<usize>().ok().and_then(|index| items.get_mut(index));
                match item {
                    Some(Value::Table(inner)) => inner,
                    _ => bail!(
                        "`--set {path}=...`: `{part}` has entries 0 to {} (write `--set {part}.0.key=value`)",
                        count.saturating_sub(1)
                    ),
                }
            }
            _ => bail!("`--set {path}=...`: `{part}` is a value, not a section"),
        };
    }
    here.insert(last.to_owned(), value);
    Ok(())
}

/// Limits between and on single settings.
fn check(config: &Config) -> Result<()> {
    let (rollout, train) = (&config.rollout, &config.train);
    let at_least_one = [
        ("rollout.num_generations", rollout.num_generations as u64),
        ("rollout.max_completion_length", rollout.max_completion_length as u64),
        ("train.max_steps", train.max_steps),
        ("train.per_device_train_batch_size", train.per_device_train_batch_size as u64),
        ("train.gradient_accumulation_steps", train.gradient_accumulation_steps as u64),
        ("train.num_iterations", train.num_iterations as u64),
        ("logging.logging_steps", config.logging.logging_steps),
        ("number of `[[reward]]` tables", config.reward.len() as u64),
    ];
    for (key, value) in at_least_one {
        if value == 0 {
            bail!("`{key}` is 0 (it must be at least 1)");
        }
    }
    let ranges = [
        (
            "rollout.temperature",
            f64::from(rollout.temperature),
            0.0,
            100.0,
            "for greedy evaluation see `[eval]`; sampling needs more than 0",
        ),
        ("rollout.top_p", f64::from(rollout.top_p), 0.0, 1.0, "1 is off"),
        ("train.loss_temperature", train.loss_temperature, 0.0, 100.0, "1 is the model's own distribution"),
    ];
    for (key, value, low, high, hint) in ranges {
        if !(value > low && value <= high) {
            bail!("`{key}` is {value} (it must be above {low} and at most {high}; {hint})");
        }
    }
    let from_zero = [
        ("train.learning_rate", train.learning_rate, f64::MAX),
        ("train.warmup_ratio", train.warmup_ratio, 1.0),
        ("train.weight_decay", train.weight_decay, f64::MAX),
        ("train.adam_beta1", train.adam_beta1, 1.0 - f64::EPSILON),
        ("train.adam_beta2", train.adam_beta2, 1.0 - f64::EPSILON),
        ("train.adam_epsilon", train.adam_epsilon, f64::MAX),
        ("train.max_grad_norm", train.max_grad_norm, f64::MAX),
    ];
    for (key, value, high) in from_zero {
        if !(value >= 0.0 && value <= high) {
            let limit = if high == f64::MAX {
                "it must be finite, 0 or more".to_owned()
            } else {
                format!("it must be between 0 and {high}")
            };
            bail!("`{key}` is {value} ({limit})");
        }
    }
    check_sizes(config)
}

fn check_sizes(config: &Config) -> Result<()> {
    let (group, train) = (config.rollout.num_generations, &config.train);
    let (step, rollout) = (train.step_batch_size(), train.rollout_size());
    if step % group != 0 {
        bail!(
            "one optimizer step takes {step} completions (`train.per_device_train_batch_size` {} × `train.gradient_accumulation_steps` {}), which is not a multiple of `rollout.num_generations` {group} (a step holds whole groups)",
            train.per_device_train_batch_size,
            train.gradient_accumulation_steps
        );
    }
    if rollout % step != 0 {
        bail!(
            "one rollout makes {rollout} completions, which is not a multiple of the {step} of an optimizer step (set `train.steps_per_generation` to a multiple of `train.gradient_accumulation_steps`)"
        );
    }
    let per_rollout = train.steps_per_rollout();
    if train.save_steps % per_rollout != 0 {
        bail!(
            "`train.save_steps` is {}, but checkpoints are written between rollouts, every {per_rollout} steps (use a multiple)",
            train.save_steps
        );
    }
    Ok(())
}
