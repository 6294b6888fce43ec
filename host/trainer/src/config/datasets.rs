//! Opens the datasets of `[data]`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use host_data::{
    Arithmetic, Columns, Dataset, Filter, Order, PROMPT, Purpose, Reading, Rows, Source, Tokenizer,
    Wanted, find,
};
use host_model::{ModelFiles, Policy, hub};

use super::data::{DataConfig, SourceConfig};
use super::setting::given;
use crate::{refuse, require};

/// Setting with the configuration of the only dataset.
const CONFIG_KEY: &str = "`data.dataset_config`";

impl DataConfig {
    /// Opens the dataset for `purpose`, with a training order drawn from `seed`. Checks its rows
    /// against tokenizer and model.
    pub fn open(
        &self,
        seed: u64,
        purpose: Purpose,
        files: &ModelFiles,
        tokenizer: &Tokenizer,
        policy: &Policy,
    ) -> Result<Dataset> {
        let chat = self.chat(files, purpose, tokenizer)?;
        let demands = self.demands(chat.as_ref(), purpose, tokenizer, policy);
        if let Some(task) = Dataset::embedded(&self.dataset_name, seed, &demands)? {
            return Ok(task);
        }
        let order = Order {
            seed,
            shuffle: self.shuffle_dataset,
            max_train_samples: self.max_train_samples,
        };
        let eval = eval(self)?;
        let rows = Rows::open(&train(self)?, eval.as_ref(), order, &demands)?;
        Ok(Dataset::Rows(rows))
    }
}

/// The datasets of training prompts.
fn train(data: &DataConfig) -> Result<Vec<Source>> {
    let one = SourceConfig {
        path: data.dataset_name.clone(),
        name: data.dataset_config.clone(),
        split: data.dataset_train_split.clone(),
        ..SourceConfig::default()
    };
    let (all, key) = match &data.datasets[..] {
        [] => (std::slice::from_ref(&one), CONFIG_KEY),
        several => (several, "`name` in its table of `[[data.datasets]]`"),
    };
    all.iter()
        .map(|config| open(config, data, "train", key))
        .collect()
}

/// The dataset of held-out prompts: a separate one, or another split of the only dataset.
fn eval(data: &DataConfig) -> Result<Option<Source>> {
    let (path, name, key) = match (&data.eval_dataset_name, &data.dataset_test_split) {
        (Some(path), _) => (
            path.clone(),
            None,
            "the path of its folder as `data.eval_dataset_name`",
        ),
        (None, Some(_)) => (
            data.dataset_name.clone(),
            data.dataset_config.clone(),
            CONFIG_KEY,
        ),
        (None, None) => return Ok(None),
    };
    let split = data.dataset_test_split.clone();
    measured(
        &SourceConfig {
            path,
            name,
            split,
            ..SourceConfig::default()
        },
        data,
        key,
    )
    .map(Some)
}

/// A dataset that a model is measured on. The rows that are used do not depend on the training
/// data. `key` names its configuration.
pub(super) fn measured(config: &SourceConfig, data: &DataConfig, key: &str) -> Result<Source> {
    let source = open(config, data, "test", key)?;
    Ok(Source {
        reading: Reading {
            filter: Filter::default(),
            ..source.reading
        },
        ..source
    })
}

fn open(
    config: &SourceConfig,
    data: &DataConfig,
    default_split: &str,
    config_key: &str,
) -> Result<Source> {
    let wanted = Wanted {
        config: config.name.as_deref(),
        split: config.split.as_deref(),
        default_split,
        config_key,
    };
    let files = find(&located(&config.path)?, wanted)?;
    let preset = config.preset.or(data.preset);
    let reading = Reading {
        columns: match preset {
            // A preset makes columns of the usual names, whatever those of other datasets are.
            Some(_) => Columns::default(),
            None => Columns {
                prompt: own_or(&config.prompt_column, &data.prompt_column),
                answer: own_or(&config.answer_column, &data.answer_column),
                solution: own_or(&config.solution_column, &data.solution_column),
            },
        },
        preset,
        template: config
            .prompt_template
            .clone()
            .or_else(|| data.prompt_template.clone()),
        filter: config.filter.as_ref().unwrap_or(&data.filter).clone(),
        answer_is_unread: data.answer_is_unread,
    };
    let split = config
        .split
        .as_deref()
        .map_or(String::new(), |split| format!(", {split}"));
    Ok(Source {
        name: format!("{}{split}", config.path),
        files,
        reading,
        weight: config.weight,
    })
}

/// A dataset's own column, else that of `[data]`.
fn own_or(own: &Option<String>, shared: &str) -> String {
    own.as_deref().unwrap_or(shared).to_owned()
}

/// File or folder of a dataset's name: a path, or the newest snapshot of an id in the Hub's cache.
fn located(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.to_owned());
    }
    hub::find_dataset(name)?.with_context(|| {
        format!(
            "no dataset `{name}`: neither an embedded one, nor a file or folder, nor in the Hub's \
             cache (embedded: `{}`; fetch one with `hf download --repo-type dataset OWNER/NAME`)",
            Arithmetic::NAME
        )
    })
}

/// Refuses settings of datasets that make other settings ineffective.
pub(super) fn check(data: &DataConfig) -> Result<()> {
    for template in data
        .datasets
        .iter()
        .map(|one| &one.prompt_template)
        .chain([&data.prompt_template])
        .flatten()
    {
        require!(
            ["data.prompt_template"],
            template.contains(PROMPT),
            "`prompt_template` is `{template}`, which has no place for the prompt (write \
             `{PROMPT}` where it goes)"
        );
    }
    let preset = data.preset;
    let mut laid_out = data
        .datasets
        .iter()
        .filter(|one| one.preset.or(preset).is_some())
        .peekable();
    let any_preset = preset.is_some() || laid_out.peek().is_some();
    let own = laid_out.find_map(|one| given(one, "columns"));
    let shared = given(data, "columns").filter(|_| any_preset);
    if let Some((key, name)) = own.or(shared) {
        let name = name.as_str().unwrap_or_default();
        refuse!(
            [format!("data.{key}")],
            "`data.{key}` is `{name}`, but a `preset` says what the \
         columns are (remove one of them)"
        );
    }
    if data.datasets.is_empty() {
        require!(
            ["data.dataset_name"],
            !data.dataset_name.is_empty(),
            "`data.dataset_name` is missing (name a file, a folder, a dataset in the Hub's cache, \
             or `{}`)",
            Arithmetic::NAME
        );
        return Ok(());
    }
    let beside = [
        ("dataset_name", !data.dataset_name.is_empty()),
        ("dataset_config", data.dataset_config.is_some()),
        ("dataset_train_split", data.dataset_train_split.is_some()),
        (
            "dataset_test_split",
            data.dataset_test_split.is_some() && data.eval_dataset_name.is_none(),
        ),
    ];
    if let Some((key, _)) = beside.into_iter().find(|(_, is_set)| *is_set) {
        refuse!(
            [format!("data.{key}")],
            "`data.{key}` is set, but `[[data.datasets]]` name the \
         data (remove one of them)"
        );
    }
    let weighted = data
        .datasets
        .iter()
        .filter(|one| one.weight.is_some())
        .count();
    require!(
        ["data.datasets"],
        weighted == 0 || weighted == data.datasets.len(),
        "{weighted} of {} `[[data.datasets]]` have a `weight` (give each one, or none)",
        data.datasets.len()
    );
    Ok(())
}
