//! A line of metrics.

use std::collections::BTreeMap;

use serde::Serialize;

/// Metric names and values.
pub type Values = Vec<(String, f64)>;

/// The metrics of a step as a JSON object: `step` comes first, then the values in the order of
/// their names. Step 0 is the evaluation before training. Values that are not finite are written as
/// null.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    pub step: u64,
    #[serde(flatten)]
    pub values: BTreeMap<String, f64>,
}

impl Line {
    /// Value of the metric `name`; `None` if the step lacks it.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }
}
