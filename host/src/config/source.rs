//! `[[data.datasets]]`: one of several datasets.

use serde::{Deserialize, Serialize};

use super::omission::is_default;
use crate::data::{Filter, Preset};

/// Entry of `[[data.datasets]]`; absent keys have the values of `[data]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// A file or a folder of rows, or the id of a dataset in the Hub's cache.
    pub path: String,
    /// The dataset's configuration, if it has several.
    pub name: Option<String>,
    /// The dataset's split; default `train`.
    pub split: Option<String>,
    /// Sampling weight of this dataset, relative to the others; either all datasets have a weight, or none.
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
