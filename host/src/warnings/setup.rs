//! Facts of a run besides its metrics.

use std::collections::BTreeMap;

use crate::config::WarningsConfig;

/// Facts of a run besides its metrics, for checks.
#[derive(Debug, Clone)]
pub struct Setup {
    /// `[warnings]`
    pub limits: WarningsConfig,
    /// `train.learning_rate`; 0 where it is not known.
    pub learning_rate: f64,
    /// True if the optimizer's second moment is of kept gradients alone.
    pub forgets: bool,
}

impl Setup {
    /// Of a run's settings by their dotted keys, as TOML writes the values.
    #[must_use]
    pub fn of(settings: &BTreeMap<String, String>) -> Self {
        let is = |key: &str, value: &str| settings.get(key).is_some_and(|set| set.trim_matches('"') == value);
        let limits = settings.iter().filter_map(|(key, value)| Some((key.strip_prefix("warnings.")?, value)));
        let limits: String = limits.map(|(key, value)| format!("{key} = {value}\n")).collect();
        Self {
            limits: toml::from_str(&limits).unwrap_or_default(),
            learning_rate: settings.get("train.learning_rate").and_then(|rate| rate.parse().ok()).unwrap_or(0.0),
            forgets: !is("train.optimizer", "sgd") && !is("train.second_moment", "kept_and_rejected"),
        }
    }
}
