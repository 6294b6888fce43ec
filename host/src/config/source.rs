//! `[[data.datasets]]`: one of several datasets.

use serde::{Deserialize, Serialize};

use super::omission::is_default;
use crate::data::{Filter, Preset};

/// `[[data.datasets]]`; what it does not say is as in `[data]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// A file or a folder of rows, or the id of a dataset in the Hub's cache.
    pub path: String,
    /// Its configuration, where it has several.
    pub name: Option<String>,
    /// Its split; `train` where it is not said.
    pub split: Option<String>,
    /// How often prompts are from it; all datasets have one, or none.
    pub weight: Option<f64>,
    /// As in `[data]`.
    pub preset: Option<Preset>,
    /// As in `[data]`.
    pub prompt_template: Option<String>,
    /// As in `[data]`.
    pub prompt_column: Option<String>,
    /// As in `[data]`.
    pub answer_column: Option<String>,
    /// As in `[data]`.
    pub solution_column: Option<String>,
    /// As in `[data]`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filter: Filter,
}
