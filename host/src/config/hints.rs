//! Advice about an unknown key: the section that has the key, or the setting with the same effect.

use super::{DataConfig, EvalConfig, LoggingConfig, ModelConfig, RolloutConfig, TrainConfig, WarningsConfig};

/// The sections of a run that consist of one table, with their keys.
pub(super) fn sections() -> [(&'static str, &'static [&'static str]); 7] {
    [
        ("model", capo_plugin::known_keys::<ModelConfig>()),
        ("data", capo_plugin::known_keys::<DataConfig>()),
        ("rollout", capo_plugin::known_keys::<RolloutConfig>()),
        ("train", capo_plugin::known_keys::<TrainConfig>()),
        ("eval", capo_plugin::known_keys::<EvalConfig>()),
        ("logging", capo_plugin::known_keys::<LoggingConfig>()),
        ("warnings", capo_plugin::known_keys::<WarningsConfig>()),
    ]
    .map(|(section, keys)| (section, keys.unwrap_or_default()))
}

/// Names of settings in other trainers, and the settings to use here.
const ELSEWHERE: [(&str, &str); 8] = [
    ("num_train_epochs", "training is counted in optimizer steps: set `train.max_steps`"),
    ("warmup_steps", "set `train.warmup_ratio`, the share of `train.max_steps`"),
    ("bf16", "set `train.dtype` to `bf16`"),
    ("fp16", "set `train.dtype` to `bf16`"),
    ("beta", "set `objective.beta`"),
    ("epsilon", "set `objective.epsilon`"),
    ("reward_weights", "set `weight` in each `[[reward]]`"),
    ("run_name", "set `train.output_dir`"),
];

/// Error message about the key `typed` of `[section]`, whose keys are `known`.
pub(super) fn unknown_key(section: &str, typed: &str, known: &[&str]) -> String {
    // `host sft` has other sections than a run.
    let is_run = sections().iter().any(|(name, keys)| *name == section && keys.iter().all(|key| known.contains(key)));
    let advice = if is_run { advice(typed) } else { None };
    advice.map_or_else(|| capo_plugin::unknown_key(typed, known), |advice| format!("unknown key `{typed}` ({advice})"))
}

fn advice(typed: &str) -> Option<String> {
    let other = sections().into_iter().find(|(_, keys)| keys.contains(&typed));
    let named = || ELSEWHERE.iter().find(|(name, _)| *name == typed).map(|(_, advice)| (*advice).to_owned());
    other.map(|(section, _)| format!("it is in `[{section}]`: `{section}.{typed}`")).or_else(named)
}
