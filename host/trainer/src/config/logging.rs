//! `[logging]`: output of a run, and its destinations.

use anyhow::Result;
use serde::{Deserialize, Deserializer, Serialize};

use super::setting::{Setting, Settings, given, settings};
use crate::refuse;

/// Section `[logging]`.
#[settings]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoggingConfig {
    /// A line on the terminal every so many steps.
    #[setting(default = 10, unit = "steps", at_least = 1)]
    #[setting(trl = ["logging_steps", "logging_strategy"])]
    pub logging_steps: u64,
    /// Trackers that get the metrics, besides `metrics.jsonl`: `none`, `tensorboard`, or a list of
    /// names ([reports](../docs/seeing.md)).
    #[setting(default = Vec::new(), unset = "`none`", trl, verl = ["trainer.logger"])]
    #[setting(
        differs = "it knows `tensorboard`, whose files `wandb sync` takes; `metrics.jsonl` is \
         always written"
    )]
    #[serde(deserialize_with = "one_or_several")]
    pub report_to: Vec<Tracker>,
    /// The metrics of each mask, weight and step control that trackers get: the `main`
    /// [ones](#metrics), or `all`. `metrics.jsonl` has all.
    #[setting(default = ComponentMetrics::Main, needs = "tracker")]
    pub component_metrics: ComponentMetrics,
    /// True writes completions with their rewards: [completions](../docs/seeing.md#completions).
    #[setting(default = false, trl)]
    pub log_completions: bool,
    /// Writes completions every so many steps, rounded up to whole rollouts. Those of the first
    /// step are always written.
    #[setting(default = 1, unit = "steps", at_least = 1, needs = "completions")]
    pub completions_steps: u64,
    /// Most completions written of a step; 0 is all.
    #[setting(default = 0, trl = ["num_completions_to_print"], differs = "how many are written")]
    #[setting(needs = "completions")]
    pub num_completions: usize,
    /// True writes only the first completion of each prompt.
    #[setting(default = false, trl, needs = "completions")]
    pub log_unique_prompts: bool,
    /// True adds the known values of each token.
    #[setting(default = false, needs = "completions")]
    pub log_tokens: bool,
    /// File format of completions: `completions.jsonl`, or with `parquet` a file per step in
    /// `completions/`.
    #[setting(default = CompletionsFormat::Jsonl, needs = "completions")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComponentMetrics {
    /// The few metrics that show at a glance what a component does.
    Main,
    /// All that a component records.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionsFormat {
    /// One file with a JSON object per completion.
    Jsonl,
    /// One file per step.
    Parquet,
}

impl LoggingConfig {
    /// Refuses settings of completions if none are written, and of trackers if there is none.
    pub(super) fn check(&self) -> Result<()> {
        #[cfg(not(feature = "datasets"))]
        if self.completions_format == CompletionsFormat::Parquet {
            return Err(host_data::features::missing("parquet", "datasets"));
        }
        if let (false, Some((key, _))) = (self.log_completions, given(self, "completions")) {
            refuse!(
                [
                    format!("logging.{key}"),
                    "logging.log_completions".to_owned()
                ],
                "`logging.{key}` is set, but no completions are \
             written (set `logging.log_completions = true`, or remove it)"
            );
        }
        if let (true, Some((key, value))) = (self.report_to.is_empty(), given(self, "tracker")) {
            let value = value.as_str().unwrap_or_default();
            refuse!(
                [format!("logging.{key}"), "logging.report_to"],
                "`logging.{key}` is `{value}`, but no tracker gets metrics, and `metrics.jsonl` \
                 has all (set `logging.report_to`, or remove it)"
            );
        }
        Ok(())
    }
}

/// Reads a list of trackers, a single tracker, or `none`.
fn one_or_several<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Tracker>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "it names `tensorboard`, a list of such names, or `none` (for Weights & \
         Biases: `wandb sync RUN` takes the files of `tensorboard`)"
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
