//! Serializes the lines of `metrics.jsonl`.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// One line. `step` comes first, then the values in the order of their names.
struct Line<'a> {
    step: u64,
    values: &'a BTreeMap<String, f64>,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let step = ("step", Value::from(self.step));
        let values = self.values.iter().map(|(name, value)| (name.as_str(), Value::from(*value)));
        serializer.collect_map(std::iter::once(step).chain(values))
    }
}

/// The JSON object of one step. Values that are not finite become null.
pub(super) fn line(step: u64, values: &BTreeMap<String, f64>) -> Result<String> {
    Ok(serde_json::to_string(&Line { step, values })?)
}
