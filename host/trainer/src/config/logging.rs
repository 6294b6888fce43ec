//! `[logging]`: output of a run, and its destinations.

use anyhow::{Result, bail};
use serde::{Deserialize, Deserializer, Serialize};

use super::limits::{at_least_one, first};
use super::omission::{is_default, may_be_left_out};

/// Section `[logging]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// Interval in steps between lines on the terminal.
    pub logging_steps: u64,
    /// Trackers that receive the metrics besides `metrics.jsonl`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_several")]
    pub report_to: Vec<Tracker>,
    /// Metrics of masks, weights and step controls that trackers receive: the `main` ones, or `all`. `metrics.jsonl` has all.
    #[serde(skip_serializing_if = "is_default")]
    pub component_metrics: ComponentMetrics,
    /// True if completions and their rewards are written to `completions.jsonl`, or to files in `completions/`.
    pub log_completions: bool,
    /// Interval in steps between steps whose completions are written, each at the beginning of a rollout. The first step is one of them.
    #[serde(skip_serializing_if = "is_default_steps")]
    pub completions_steps: u64,
    /// Largest number of completions that are written per step; 0 writes all.
    #[serde(skip_serializing_if = "is_default")]
    pub num_completions: usize,
    /// True if only one completion per prompt is written.
    #[serde(skip_serializing_if = "is_default")]
    pub log_unique_prompts: bool,
    /// True if the known values of each token are written too.
    #[serde(skip_serializing_if = "is_default")]
    pub log_tokens: bool,
    /// File format of completions: `jsonl`, or `parquet` with one file per step.
    #[serde(skip_serializing_if = "is_default")]
    pub completions_format: CompletionsFormat,
}

/// A program that shows metrics. A run writes its file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tracker {
    /// TensorBoard: event files in the run's directory.
    Tensorboard,
}

/// Metrics of components for trackers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComponentMetrics {
    /// The few metrics that show at a glance what a component does.
    #[default]
    Main,
    /// All that a component records.
    All,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionsFormat {
    /// One file with a JSON object per completion.
    #[default]
    Jsonl,
    /// One file per step.
    Parquet,
}

impl Default for LoggingConfig {
    fn default() -> Self {
        Self {
            logging_steps: 10,
            report_to: Vec::new(),
            component_metrics: ComponentMetrics::Main,
            log_completions: false,
            completions_steps: 1,
            num_completions: 0,
            log_unique_prompts: false,
            log_tokens: false,
            completions_format: CompletionsFormat::Jsonl,
        }
    }
}

impl LoggingConfig {
    /// Refuses counts of 0, and settings of completions if none are written.
    pub(super) fn check(&self) -> Result<()> {
        at_least_one(&[
            ("logging.logging_steps", self.logging_steps),
            ("logging.completions_steps", self.completions_steps),
        ])?;
        let silenced = first(&[
            ("completions_steps", self.completions_steps != 1),
            ("num_completions", self.num_completions > 0),
            ("log_unique_prompts", self.log_unique_prompts),
            ("log_tokens", self.log_tokens),
            ("completions_format", self.completions_format != CompletionsFormat::Jsonl),
        ]);
        #[cfg(not(feature = "datasets"))]
        if self.completions_format == CompletionsFormat::Parquet {
            return Err(crate::features::missing("parquet", "datasets"));
        }
        if let Some(key) = silenced.filter(|_| !self.log_completions) {
            bail!(
                "`logging.{key}` is set, but no completions are written (set `logging.log_completions = true`, or remove it)"
            );
        }
        Ok(())
    }
}

fn is_default_steps(value: &u64) -> bool {
    may_be_left_out(*value == 1)
}

/// Reads a list of trackers, a single tracker, or `none`.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Tracker>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "it names `tensorboard`, a list of such names, or `none` (for Weights & Biases: `wandb sync RUN` takes the files of `tensorboard`)"
    )]
    enum Given {
        None(Nothing),
        One(Tracker),
        Several(Vec<Tracker>),
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Nothing {
        None,
    }
    Ok(match Given::deserialize(deserializer)? {
        Given::None(Nothing::None) => Vec::new(),
        Given::One(tracker) => vec![tracker],
        Given::Several(trackers) => trackers,
    })
}
