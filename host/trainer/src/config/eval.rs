//! `[eval]`: the evaluations of a run, and their times.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use toml::Table;

use super::data::{DataConfig, SourceConfig};
use super::datasets;
use super::omission::is_default;
use crate::data::{Demands, Example, Preset, examples};
use crate::model::SamplingParams;

/// Largest number of samples per prompt.
const MOST_SAMPLES: usize = 1 << 16;
/// Name in metrics of the mean over benchmarks, in place of a benchmark's name.
pub const TEST: &str = "TEST";

/// Section `[eval]`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvalConfig {
    /// Number of held-out prompts, answered greedily before and after training; 0 turns it off.
    pub num_prompts: usize,
    /// Interval in optimizer steps between further evaluations; 0 turns them off.
    pub eval_steps: u64,
    /// Largest number of answers that are sampled at a time; 0 is 512.
    #[serde(skip_serializing_if = "is_default")]
    pub per_device_eval_batch_size: usize,
    /// Name of the reward that decides if an answer is right, by a value above 0. `None` is the sum of all rewards.
    pub reward: Option<String>,
    /// Entries of `[[eval.benchmark]]`, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub benchmark: Vec<BenchmarkConfig>,
}

/// Entry of `[[eval.benchmark]]`; absent keys about its rows have the values of `[data]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkConfig {
    /// Name of the benchmark in metrics.
    pub name: String,
    /// A file or a folder of rows, or the id of a dataset in the Hub's cache.
    pub file: String,
    /// The dataset's configuration, if it has several.
    pub config: Option<String>,
    /// The dataset's split; default `test`.
    pub split: Option<String>,
    pub preset: Option<Preset>,
    pub prompt_template: Option<String>,
    pub prompt_column: Option<String>,
    pub answer_column: Option<String>,
    /// Number of answers to each prompt.
    #[serde(default = "one")]
    pub samples: usize,
    /// Temperature, the divisor of the logits; 0 is greedy decoding.
    #[serde(default)]
    pub temperature: f64,
    /// Total probability of the most likely tokens to sample from; 1 turns top-p off.
    #[serde(default = "all")]
    pub top_p: f64,
    /// Number of most likely tokens to sample from; 0 turns top-k off.
    #[serde(default, skip_serializing_if = "is_default")]
    pub top_k: usize,
    /// Longest answer in tokens; `None` is the limit of rollouts.
    pub max_completion_length: Option<usize>,
    /// Largest number of prompts, from the beginning of the file; 0 is all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_prompts: usize,
}

fn one() -> usize {
    1
}

fn all() -> f64 {
    1.0
}

impl BenchmarkConfig {
    /// The benchmark of a file with default settings: one greedy answer to each prompt, named after the file.
    pub fn of_file(file: &str) -> Result<Self> {
        let stem = std::path::Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or("benchmark");
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = stem.chars().map(plain).collect();
        Ok(Table::from_iter([("name".into(), name.into()), ("file".into(), file.into())]).try_into()?)
    }

    pub fn sampling(&self) -> SamplingParams {
        SamplingParams { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p }
    }

    /// The benchmark's prompts, checked against `demands`, and the number of rows that were left out.
    pub fn examples(&self, data: &DataConfig, demands: &Demands<'_>) -> Result<(Vec<Example>, usize)> {
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
        let (mut examples, left_out) = examples(&datasets::measured(&source, data)?, demands)?;
        if self.max_prompts > 0 {
            examples.truncate(self.max_prompts);
        }
        Ok((examples, left_out))
    }

    fn check(&self) -> Result<()> {
        let name = &self.name;
        ensure!(
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)),
            "the `name` of a benchmark is `{name}` (use letters, digits, `-`, `_` and `.`)"
        );
        let of = |key: &str| format!("`{key}` of benchmark `{name}`");
        ensure!(
            (1..=MOST_SAMPLES).contains(&self.samples),
            "{} is {} (it must be from 1 to {MOST_SAMPLES})",
            of("samples"),
            self.samples
        );
        if let Err(error) = self.sampling().check() {
            bail!("benchmark `{name}`: {error}");
        }
        ensure!(
            self.temperature > 0.0 || self.samples == 1,
            "{} is {}, but at `temperature` 0 all answers are the same (set a temperature, or 1 sample)",
            of("samples"),
            self.samples
        );
        ensure!(self.max_completion_length != Some(0), "{} is 0 (it must be at least 1)", of("max_completion_length"));
        Ok(())
    }
}

/// Default number of answers that are sampled at a time.
pub const ANSWERS_AT_ONCE: usize = 512;

impl EvalConfig {
    /// Largest number of answers that are sampled at a time, with its default.
    pub fn batch_size(&self) -> usize {
        if self.per_device_eval_batch_size == 0 { ANSWERS_AT_ONCE } else { self.per_device_eval_batch_size }
    }

    /// Refuses invalid benchmarks, and two of one name.
    pub fn check(&self, rewards: &[String]) -> Result<()> {
        let mut names = BTreeSet::from([TEST]);
        for benchmark in &self.benchmark {
            benchmark.check()?;
            let name = &benchmark.name;
            ensure!(
                names.insert(name),
                "two benchmarks are called `{name}`, or one by the name of their mean (give each a name of its own)"
            );
        }
        if let Some(reward) = &self.reward {
            ensure!(
                rewards.contains(reward),
                "`eval.reward` is `{reward}`, but the run has no such reward (it has `{}`)",
                rewards.join("`, `")
            );
        }
        Ok(())
    }
}
