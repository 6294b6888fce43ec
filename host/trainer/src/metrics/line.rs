//! A line of metrics.

use std::collections::BTreeMap;

use serde::Serialize;

/// Metric names and values.
pub type Values = Vec<(String, f64)>;

/// The metrics of a step. As JSON it is an object: `step` comes first, then the values in the order
/// of their names. Values that are not finite become null. Step 0 is the evaluation before
/// training.
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
