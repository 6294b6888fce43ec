//! Advice about an unknown key: the section that has the key, or what docs/from-trl.md has in its place.

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

/// The page whose tables have the names of settings in TRL.
const FROM_TRL: &str = include_str!("../../../docs/from-trl.md");

/// Error message about the key `typed` of `[section]`, whose keys are `known`.
pub(super) fn unknown_key(section: &str, typed: &str, known: &[&str]) -> String {
    // `host sft` has other sections than a run.
    let is_run = sections().iter().any(|(name, keys)| *name == section && keys.iter().all(|key| known.contains(key)));
    let advice = if is_run { advice(typed) } else { None };
    advice.map_or_else(|| capo_plugin::unknown_key(typed, known), |advice| format!("unknown key `{typed}` ({advice})"))
}

/// Error message about the section `typed`, which may be a key outside of its section; the sections are `known`.
pub(super) fn unknown_section(typed: &str, known: &[&str]) -> String {
    let advice = advice(typed).map(|advice| format!("unknown key `{typed}` ({advice})"));
    advice.unwrap_or_else(|| capo_plugin::unknown_key(typed, known))
}

/// Where the setting `typed` is, or what has its effect.
pub(super) fn advice(typed: &str) -> Option<String> {
    let other = sections().into_iter().find(|(_, keys)| keys.contains(&typed));
    let at = |section: &str, more: &str| format!("it is in `[{section}]`: `{section}.{typed}`{more}");
    if let Some((section, _)) = other {
        return Some(at(section, ""));
    }
    let [_, here, differs] =
        rows().find(|[names, ..]| names.split('`').skip(1).step_by(2).any(|name| name == typed))?;
    Some(match (here, here.strip_prefix("the same in `[").and_then(|rest| rest.split_once("]`"))) {
        (_, Some((section, more))) => at(section, more),
        ("", None) => format!("{}; docs/from-trl.md", plain(differs)),
        (here, None) => format!("here: {}; docs/from-trl.md", plain(here)),
    })
}

/// The rows of the tables: TRL's names, what is here, what differs.
fn rows() -> impl Iterator<Item = [&'static str; 3]> {
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        Some([cells.next()?, cells.next()?, cells.next()?])
    };
    FROM_TRL.lines().filter_map(row)
}

/// The text without the addresses of its links.
fn plain(text: &str) -> String {
    let parts = text.split("](").enumerate();
    let rest = |(at, part): (usize, &str)| {
        if at == 0 { part.to_owned() } else { part.split_once(')').map_or("", |(_, rest)| rest).to_owned() }
    };
    parts.map(rest).collect::<String>().replace('[', "")
}
