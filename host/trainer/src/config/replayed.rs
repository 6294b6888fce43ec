//! Overrides for recorded batches: of the components that run over them, and of the optimizer that
//! they were recorded with.

use anyhow::{Result, bail};
use capo_loader::replay::OptimizerSettings;
use toml::Value;

use super::aliases::aliases_of;
use super::sets::parse_set;

/// The optimizer settings among `--set`, and TRL's settings that become masks or weights. `command`
/// also reads the sections in `reads`.
pub fn replayed_settings(
    command: &str,
    reads: &[&str],
    sets: &[String],
) -> Result<OptimizerSettings> {
    let mut optimizer = OptimizerSettings::default();
    let aliases: Vec<&str> = ["mask", "weight"]
        .into_iter()
        .filter(|section| reads.contains(section))
        .flat_map(aliases_of)
        .collect();
    for (path, value) in sets
        .iter()
        .map(|set| parse_set(set))
        .collect::<Result<Vec<_>>>()?
    {
        let entries = match value {
            Value::Table(table) if path == "train" => table
                .into_iter()
                .map(|(key, value)| (format!("train.{key}"), value))
                .collect(),
            value => vec![(path, value)],
        };
        for (path, value) in entries {
            let (section, key) = path.split_once('.').unwrap_or((&path, ""));
            if reads.contains(&section) || (section == "train" && aliases.contains(&key)) {
                continue;
            }
            let place = match path.as_str() {
                "train.learning_rate" => &mut optimizer.learning_rate,
                "train.adam_beta1" => &mut optimizer.adam_beta1,
                "train.adam_beta2" => &mut optimizer.adam_beta2,
                "train.adam_epsilon" => &mut optimizer.adam_epsilon,
                _ => bail!(
                    "`--set {path}=...`: {command} does not read it (it reads `{}`, and of the \
                     optimizer `train.learning_rate`, `train.adam_beta1`, `train.adam_beta2` and \
                     `train.adam_epsilon`)",
                    reads.join("`, `")
                ),
            };
            *place = match value {
                Value::Float(number) => Some(number),
                Value::Integer(number) => Some(number as f64),
                other => bail!("`--set {path}={other}` is no number (write `--set {path}=1e-6`)"),
            };
        }
    }
    Ok(optimizer)
}
