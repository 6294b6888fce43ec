//! Settings of TRL that components of libmasks implement here. A config has each under TRL's name
//! in `[train]`. The setting is removed from there, and the component with its effect is appended
//! to `[[mask]]` or `[[weight]]`. VESPO has its correction in the objective, as in TRL.

use anyhow::{Result, bail};
use capo_loader::registry::Registry;
use toml::{Table, Value};

use super::draft::read_section;
use super::hints;
use super::setting::names;
use super::trl::{Mode, TrlConfig};
use super::{Draft, TrainConfig};

/// The library with these components.
const LIBRARY: &str = "libmasks.so";
/// The objective that itself corrects for a sampler whose policy differs.
const VESPO: &str = "vespo.objective";

/// The mask that rejects completions that the length limit cut off.
const TRUNCATED: &str = "masks.truncated";

/// A TRL setting, and the component that implements it.
#[derive(Debug)]
pub(super) struct Alias {
    /// The setting's name in `[train]`.
    setting: &'static str,
    /// Section of the component: `mask`, `weight` or `objective`.
    section: &'static str,
    id: &'static str,
    keys: Table,
}

impl Alias {
    fn new(setting: &'static str, section: &'static str, id: &'static str) -> Self {
        Self {
            setting,
            section,
            id,
            keys: Table::new(),
        }
    }

    fn key(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.keys.insert(name.to_owned(), value.into());
        self
    }

    /// The component's table, as in a config.
    fn table(&self) -> Value {
        let mut table = self.keys.clone();
        table.insert("use".to_owned(), self.id.into());
        Value::Table(table)
    }

    /// The component's id, if TRL applies it as a factor of the loss. TRL drops truncated
    /// completions before the loss, so their mask is no factor.
    pub(super) fn loss_factor(&self) -> Option<&'static str> {
        (self.section != "objective" && self.id != TRUNCATED).then_some(self.id)
    }

    /// The alias as a line for the header of a run.
    pub(super) fn line(&self) -> String {
        format!(
            "alias      train.{}: {} `{}`",
            self.setting, self.section, self.id
        )
    }

    /// Refuses images that lack the component.
    pub(super) fn check(&self, registry: &Registry) -> Result<()> {
        if registry.offers().iter().any(|offer| offer.id == self.id) {
            return Ok(());
        }
        bail!(
            "`train.{}` is done by `{}` (give `--plugin {LIBRARY}`, which has it)",
            self.setting,
            self.id
        )
    }
}

impl TrlConfig {
    /// The aliases of a run with this objective.
    fn aliases(self, objective: Option<&str>) -> Vec<Alias> {
        let mut aliases = Vec::new();
        if self.mask_truncated_completions {
            aliases.push(Alias::new("mask_truncated_completions", "mask", TRUNCATED));
        }
        if let Some(quantile) = self
            .top_entropy_quantile
            .filter(|quantile| *quantile != 1.0)
        {
            let name = "top_entropy_quantile";
            aliases.push(Alias::new(name, "mask", "masks.entropy-quantile").key(name, quantile));
        }
        if let Some(threshold) = self.off_policy_mask_threshold {
            let name = "off_policy_mask_threshold";
            aliases
                .push(Alias::new(name, "mask", "masks.off-policy-sequence").key(name, threshold));
        }
        aliases.extend(self.importance_sampling(objective == Some(VESPO)));
        aliases
    }

    /// The correction for a sampler whose policy differs. Any of its settings turns it on, except
    /// `..._correction = false`.
    fn importance_sampling(&self, in_objective: bool) -> Option<Alias> {
        let mode = self.vllm_importance_sampling_mode;
        let low = self.vllm_importance_sampling_clip_min;
        let high = self.vllm_importance_sampling_clip_max;
        let setting = match self.vllm_importance_sampling_correction {
            Some(false) => return None,
            Some(true) => "vllm_importance_sampling_correction",
            None if mode.is_some() => "vllm_importance_sampling_mode",
            None if high.is_some() => "vllm_importance_sampling_clip_max",
            None if low.is_some() => "vllm_importance_sampling_clip_min",
            None => return None,
        };
        // The default of TRL.
        let (level, outside) = match mode.unwrap_or(Mode::SequenceMask) {
            Mode::TokenTruncate => ("token", "truncate"),
            Mode::TokenMask => ("token", "mask"),
            Mode::SequenceTruncate => ("sequence", "truncate"),
            Mode::SequenceMask => ("sequence", "mask"),
        };
        let (alias, most, least) = if in_objective {
            let alias = Alias::new(setting, "objective", VESPO);
            let alias = alias.key(
                "vllm_importance_sampling_mode",
                format!("{level}_{outside}"),
            );
            (
                alias,
                "vllm_importance_sampling_clip_max",
                "vllm_importance_sampling_clip_min",
            )
        } else {
            let alias = Alias::new(setting, "weight", "masks.tis")
                .key("mode", outside)
                .key("rollout_is", level);
            (alias, "rollout_is_threshold", "rollout_is_threshold_lower")
        };
        let alias = alias.key(most, high.unwrap_or(3.0));
        Some(match low {
            Some(low) => alias.key(least, low),
            None => alias,
        })
    }
}

/// TRL's settings that become components of `section`, which is `mask` or `weight`.
pub(super) fn aliases_of(section: &str) -> impl Iterator<Item = &'static str> {
    let weights = section == "weight";
    names::<TrlConfig>()
        .into_iter()
        .filter(move |name| name.starts_with("vllm_importance_sampling") == weights)
}

impl Draft {
    /// Removes TRL's settings from `[train]`. Appends their components, or adds their keys to the
    /// objective.
    pub(super) fn take_aliases(&mut self) -> Result<Vec<Alias>> {
        let own = names::<TrlConfig>();
        let train = names::<TrainConfig>();
        let objective = self.objective();
        let Some(Value::Table(table)) = self.table.get("train") else {
            return Ok(Vec::new());
        };
        // Checked here, so that a mistyped key is compared with both lists.
        let known = [&train[..], &own].concat();
        if let Some(unknown) = table.keys().find(|key| !known.contains(&key.as_str())) {
            let origin = self.origin(&[&format!("train.{unknown}")]);
            bail!(
                "`[train]` of {origin}: {}",
                hints::unknown_key("train", unknown, &known)
            );
        }
        let mut table = table.clone();
        let taken: Table = own
            .iter()
            .filter_map(|name| table.remove_entry(*name))
            .collect();
        self.table.insert("train".into(), Value::Table(table));
        let settings: TrlConfig = read_section("train", Value::Table(taken), |key| {
            self.origin(&[&format!("train.{key}")])
        })?;
        let aliases = settings.aliases(objective.as_deref());
        for alias in &aliases {
            if alias.section == "objective" {
                self.give_objective(alias)?;
                continue;
            }
            let mut list = self.list(alias.section)?;
            let named = list
                .iter()
                .filter_map(|one| one.get("use").and_then(Value::as_str));
            let by_flag = self
                .appended
                .lists()
                .into_iter()
                .flat_map(|(_, _, ids)| ids)
                .map(String::as_str);
            if named.chain(by_flag).any(|id| id == alias.id) {
                let Alias { setting, id, .. } = alias;
                let origin = self.origin(&[&format!("train.{setting}")]);
                bail!(
                    "`train.{setting}` of {origin} is the component `{id}`, which is named as \
                     well (leave one out)"
                );
            }
            list.push(alias.table());
            self.table.insert(alias.section.into(), Value::Array(list));
        }
        Ok(aliases)
    }

    /// Adds the keys of `alias` to the objective.
    fn give_objective(&mut self, alias: &Alias) -> Result<()> {
        let by_set: Vec<&str> = self
            .sets()
            .filter_map(|path| path.strip_prefix("objective."))
            .collect();
        let table = self.table.get("objective").and_then(Value::as_table);
        let given = alias.keys.keys().find(|key| {
            by_set.contains(&key.as_str()) || table.is_some_and(|table| table.contains_key(*key))
        });
        if let Some(key) = given {
            let origin = self.origin(&[&format!("train.{}", alias.setting)]);
            bail!(
                "`train.{}` of {origin} sets `objective.{key}`, which is set as well (leave one \
                 out)",
                alias.setting
            );
        }
        let table = self
            .table
            .entry("objective")
            .or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(table) = table {
            table.extend(alias.keys.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULT;

    /// The components that the settings append, one per line.
    fn appended(settings: &str) -> String {
        let sets = settings
            .split_whitespace()
            .map(|set| format!("train.{set}"))
            .collect::<Vec<_>>();
        let mut draft = Draft::read(None, DEFAULT, &sets).unwrap();
        let line = |alias: &Alias| format!("{} {}", alias.section, alias.table());
        draft
            .take_aliases()
            .unwrap()
            .iter()
            .map(line)
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn each_setting_becomes_a_component_unless_it_is_off() {
        let cases = [
            (
                "mask_truncated_completions=true",
                "mask { use = \"masks.truncated\" }",
            ),
            (
                "top_entropy_quantile=0.2",
                "mask { top_entropy_quantile = 0.2, use = \"masks.entropy-quantile\" }",
            ),
            (
                "off_policy_mask_threshold=0.5",
                "mask { off_policy_mask_threshold = 0.5, use = \"masks.off-policy-sequence\" }",
            ),
            (
                "vllm_importance_sampling_mode=token_truncate \
                 vllm_importance_sampling_clip_min=0.5",
                "weight { mode = \"truncate\", rollout_is = \"token\", rollout_is_threshold = 3.0, \
                 rollout_is_threshold_lower = 0.5, use = \"masks.tis\" }",
            ),
            (
                "vllm_importance_sampling_correction=true",
                "weight \
                 { mode = \"mask\", rollout_is = \"sequence\", rollout_is_threshold = 3.0, use \
                  = \"masks.tis\" }",
            ),
            (
                "vllm_importance_sampling_correction=false \
                 vllm_importance_sampling_mode=token_mask",
                "",
            ),
            (
                "mask_truncated_completions=false top_entropy_quantile=1.0",
                "",
            ),
            ("top_entropy_quantile=1", ""),
        ];
        for (settings, expected) in cases {
            assert_eq!(appended(settings), expected, "{settings}");
        }
    }

    #[test]
    fn vespo_has_its_correction_in_the_objective() {
        let taken = |more: &str| {
            let sets = [
                "objective.use=vespo.objective",
                "train.vllm_importance_sampling_clip_max=2.5",
                more,
            ];
            let mut draft = Draft::read(None, DEFAULT, &sets.map(str::to_owned)).unwrap();
            let lines: Vec<String> = draft.take_aliases()?.iter().map(Alias::line).collect();
            assert!(draft.list("weight").unwrap().is_empty());
            anyhow::Ok(format!(
                "{}, {}",
                lines.join("\n"),
                draft.table["objective"]
            ))
        };
        assert_eq!(
            taken("train.seed=1").unwrap(),
            "alias      train.vllm_importance_sampling_clip_max: objective `vespo.objective`, \
             { vllm_importance_sampling_mode = \"sequence_mask\", \
              vllm_importance_sampling_clip_max = 2.5 }"
        );
        assert_eq!(
            taken("objective.vllm_importance_sampling_mode=token_mask")
                .unwrap_err()
                .to_string(),
            "`train.vllm_importance_sampling_clip_max` of `--set` sets \
             `objective.vllm_importance_sampling_mode`, which is set as well (leave one out)"
        );
    }
}
