//! Facts about a run besides its metrics.

use std::collections::BTreeMap;

use crate::config::WarningsConfig;

/// Facts about a run besides its metrics, for checks.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Section `[warnings]`.
    pub limits: WarningsConfig,
    /// `train.learning_rate`; 0 if it is unknown.
    pub learning_rate: f64,
    /// Number of held-out prompts, `eval.num_prompts`; 0 if it is unknown.
    pub held_out: f64,
    /// True if the optimizer's second moment contains only the gradients of kept tokens.
    pub forgets: bool,
}

impl Setup {
    /// Reads the facts from a run's settings, by dotted keys, with values as in TOML.
    #[must_use]
    pub fn of(settings: &BTreeMap<String, String>) -> Self {
        let is = |key: &str, value: &str| settings.get(key).is_some_and(|set| set.trim_matches('"') == value);
        let limits = settings.iter().filter_map(|(key, value)| Some((key.strip_prefix("warnings.")?, value)));
        let limits: String = limits.map(|(key, value)| format!("{key} = {value}\n")).collect();
        let number = |key: &str| settings.get(key).and_then(|number| number.parse().ok()).unwrap_or(0.0);
        Self {
            limits: toml::from_str(&limits).unwrap_or_default(),
            learning_rate: number("train.learning_rate"),
            held_out: number("eval.num_prompts"),
            forgets: !is("train.optimizer", "sgd") && !is("train.second_moment", "kept_and_rejected"),
        }
    }
}
