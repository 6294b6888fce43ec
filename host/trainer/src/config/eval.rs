//! `[eval]`: the evaluations of a run, and their times.

use std::collections::BTreeSet;

use anyhow::Result;
use host_data::{Demands, Example, Preset, examples};
use host_model::SamplingParams;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::data::{DataConfig, SourceConfig};
use super::datasets;
use super::setting::{self, Setting, Settings, given, settings};
use crate::{refuse, require};

/// Largest number of samples per prompt.
const MOST_SAMPLES: usize = 1 << 16;
/// Name in metrics of the mean over benchmarks, in place of a benchmark's name.
pub const TEST: &str = "TEST";

/// Section `[eval]`.
#[settings]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EvalConfig {
    /// Held-out prompts, answered greedily before and after training; 0 is off.
    #[setting(default = 0)]
    pub num_prompts: usize,
    /// Evaluates every so many optimizer steps as well; 0 is off.
    #[setting(default = 0, unit = "steps", trl = ["eval_steps", "eval_strategy"])]
    #[setting(verl = ["trainer.test_freq"])]
    #[setting(differs = "[evaluation](../docs/evaluation.md) is always counted in steps")]
    pub eval_steps: u64,
    /// Most answers that are sampled at a time; 0 is 512.
    #[setting(default = 0, trl)]
    pub per_device_eval_batch_size: usize,
    /// Name of the reward that decides whether an answer is right, namely if it is above 0:
    /// [how it is known](../docs/evaluation.md#held-out-prompts).
    #[setting(unset = "the one that compares answers, or the only one")]
    pub reward: Option<String>,
    /// Tables `[[eval.benchmark]]`: several answers to each question of a file
    /// ([benchmarks](#benchmarks)).
    #[setting(default = Vec::new())]
    pub benchmark: Vec<BenchmarkConfig>,
}

/// Entry of `[[eval.benchmark]]`.
#[settings]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkConfig {
    /// Name in the metrics: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// A file or a folder of rows, or the id of a dataset in the Hub's cache:
    /// [data](../docs/data.md#where-rows-are).
    pub file: String,
    /// The dataset's configuration.
    #[setting(unset = "the only one")]
    pub config: Option<String>,
    /// The dataset's split.
    #[setting(unset = "`test`")]
    pub split: Option<String>,
    /// Layout of its rows.
    #[setting(unset = "as in `[data]`")]
    pub preset: Option<Preset>,
    /// Text around each prompt, with `{prompt}` in the prompt's place.
    #[setting(unset = "as in `[data]`")]
    pub prompt_template: Option<String>,
    /// Column with the prompt. `data.filter` does not apply to benchmarks.
    #[setting(unset = "as in `[data]`", needs = "columns")]
    pub prompt_column: Option<String>,
    /// Column with the expected answer.
    #[setting(unset = "as in `[data]`", needs = "columns")]
    pub answer_column: Option<String>,
    /// Answers to each prompt.
    #[setting(default = 1, at_least = 1, at_most = MOST_SAMPLES, trl = ["num_generations_eval"])]
    #[setting(needs = "temperature")]
    pub samples: usize,
    /// Divides the logits. 0 takes the likeliest token and allows one answer only.
    #[setting(default = 0.0)]
    pub temperature: f64,
    /// Total probability of the most likely tokens to sample from; 1 turns top-p off.
    #[setting(default = 1.0, needs = "temperature")]
    pub top_p: f64,
    /// Number of most likely tokens to sample from; 0 turns top-k off.
    #[setting(default = 0, needs = "temperature")]
    pub top_k: usize,
    /// The longest answer.
    #[setting(unset = "that of `[rollout]`", unit = "tokens", at_least = 1)]
    pub max_completion_length: Option<usize>,
    /// Uses only the first prompts of the file, this many; 0 is all.
    #[setting(default = 0)]
    pub max_prompts: usize,
}

impl BenchmarkConfig {
    /// The benchmark of a file with default settings: one greedy answer to each prompt, named after
    /// the file.
    pub fn of_file(file: &str) -> Result<Self> {
        let stem = std::path::Path::new(file)
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or("benchmark");
        let name = stem.replace(
            |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c),
            "-",
        );
        Ok(
            Table::from_iter([("name".into(), name.into()), ("file".into(), file.into())])
                .try_into()?,
        )
    }

    pub fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
        }
    }

    /// The benchmark's prompts, checked against `demands`, and the number of rows that were left
    /// out.
    pub fn examples(
        &self,
        data: &DataConfig,
        demands: &Demands<'_>,
    ) -> Result<(Vec<Example>, usize)> {
        let source = SourceConfig {
            path: self.file.clone(),
            name: self.config.clone(),
            split: self.split.clone(),
            preset: self.preset,
            prompt_template: self.prompt_template.clone(),
            prompt_column: self.prompt_column.clone(),
            answer_column: self.answer_column.clone(),
            ..SourceConfig::default()
        };
        let (mut examples, left_out) = examples(
            &datasets::measured(&source, data, "`config` in a table of `[[eval.benchmark]]`")?,
            demands,
        )?;
        if self.max_prompts > 0 {
            examples.truncate(self.max_prompts);
        }
        Ok((examples, left_out))
    }

    /// Refuses values out of range, and those that others disable; `preset` is that of `[data]`.
    fn check(&self, preset: Option<Preset>) -> Result<()> {
        let name = &self.name;
        require!(
            ["eval.benchmark"],
            !name.is_empty()
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)),
            "the `name` of a benchmark is `{name}` (use letters, digits, `-`, `_` and `.`)"
        );
        if let Some(refused) = setting::check(self)? {
            let key = refused.setting;
            refuse!(
                ["eval.benchmark"],
                "`{key}` of benchmark `{name}` {refused}"
            );
        }
        if let Err(error) = self.sampling().check() {
            refuse!(["eval.benchmark"], "benchmark `{name}`: {error}");
        }
        if let (true, Some((key, value))) = (self.temperature == 0.0, given(self, "temperature")) {
            refuse!(
                ["eval.benchmark"],
                "`{key}` of benchmark `{name}` is {value}, but at \
             `temperature` 0 each token is the likeliest (set a temperature, or remove it)"
            );
        }
        if let (Some(_), Some((key, value))) = (self.preset.or(preset), given(self, "columns")) {
            let value = value.as_str().unwrap_or_default();
            refuse!(
                ["eval.benchmark", "data.preset"],
                "`{key}` of benchmark `{name}` is \
             `{value}`, but a `preset` says what the columns are (remove one of them)"
            );
        }
        Ok(())
    }
}

/// Default number of answers that are sampled at a time.
pub const ANSWERS_AT_ONCE: usize = 512;

impl EvalConfig {
    /// Largest number of answers that are sampled at a time, with its default.
    pub fn batch_size(&self) -> usize {
        if self.per_device_eval_batch_size == 0 {
            ANSWERS_AT_ONCE
        } else {
            self.per_device_eval_batch_size
        }
    }

    /// Refuses invalid benchmarks, and two of one name; `preset` is that of `[data]`.
    pub fn check(&self, rewards: &[String], preset: Option<Preset>) -> Result<()> {
        let mut names = BTreeSet::from([TEST]);
        for benchmark in &self.benchmark {
            benchmark.check(preset)?;
            let name = &benchmark.name;
            require!(
                ["eval.benchmark"],
                names.insert(name),
                "two benchmarks are called `{name}`, or one by the name of their mean (give each \
                 a `name` in `[[eval.benchmark]]`; `--benchmark` takes that of the file)"
            );
        }
        if let Some(reward) = &self.reward {
            require!(
                ["eval.reward"],
                rewards.contains(reward),
                "`eval.reward` is `{reward}`, but the run has no such reward (it has `{}`)",
                rewards.join("`, `")
            );
        }
        Ok(())
    }
}
