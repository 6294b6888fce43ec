//! Which recipe fills in what a config leaves open.

use anyhow::{Result, bail};
use capo_loader::offer::{Offer, Origin};
use capo_loader::registry::Registry;
use capo_loader::{component_names, tables};
use toml::{Table, Value};

use super::aliases::Alias;
use super::draft::{COMPONENT_SECTIONS, read_section, to_reward};
use super::{Config, Draft, RolloutConfig, TrainConfig};
use crate::algorithms::DEFAULT_RECIPE;

/// The sections for which a recipe may set defaults.
const DEFAULT_SECTIONS: [&str; 3] = ["train", "rollout", "reward"];

/// A run's settings, and where they came from.
#[derive(Debug)]
pub struct Resolved {
    /// The settings.
    pub config: Config,
    /// Lines for the header of a run: the file with its overrides, and what a recipe filled in.
    pub sources: Vec<String>,
    /// TRL's settings among them that components stand for.
    aliases: Vec<Alias>,
}

impl Resolved {
    /// Refuses images that lack what TRL's settings stand for, before somebody wonders who named that component.
    pub fn check_aliases(&self, registry: &Registry) -> Result<()> {
        self.aliases.iter().try_for_each(|alias| alias.check(registry))
    }
}

/// Chooses the recipe for what `draft` leaves open, and finishes it.
///
/// A config that names a recipe gets that one; one that names both an advantage and an objective needs none; else the one recipe
/// that a plugin carries; else the built-in default.
pub fn resolve(registry: &Registry, mut draft: Draft) -> Result<Resolved> {
    let chosen = match draft.recipe()? {
        Some(name) => Some(registry.recipe(name)?),
        None if draft.names_components() => None,
        None => Some(registry.default_recipe(DEFAULT_RECIPE)?),
    };
    let mut sources = vec![format!("config     {}", draft.sources())];
    if let Some(recipe) = chosen {
        let taken = draft.merge_recipe(&recipe.name, &recipe.toml, recipe.settings)?;
        if !taken.is_empty() {
            sources.push(format!("recipe     {} ({}): {}", recipe.name, recipe.origin.name(), taken.join(", ")));
        }
    }
    let aliases = draft.take_aliases()?;
    sources.extend(aliases.iter().map(Alias::line));
    let mut config = draft.finish()?;
    add_loss_factors(&mut config, registry, &aliases);
    Ok(Resolved { config, sources, aliases })
}

/// Says of the components of TRL's settings that they are factors of the loss, where the objective is one of TRL's, or has the key by which TRL chooses
/// over what its ratio is taken: of another nobody knows that it is proportional to the advantages.
fn add_loss_factors(config: &mut Config, registry: &Registry, aliases: &[Alias]) {
    let is_trls = |offer: &&Offer| {
        let has_level = || offer.keys.iter().any(|key| key == "importance_sampling_level");
        offer.id == config.objective.id && (offer.origin == Origin::BuiltIn || has_level())
    };
    if !registry.offers().into_iter().any(|offer| is_trls(&offer)) {
        return;
    }
    let names = [component_names(&config.mask), component_names(&config.weight)].concat();
    let factors = aliases.iter().filter_map(Alias::loss_factor).filter(|id| names.iter().any(|name| name == id));
    let listed = config.train.loss_factors.clone();
    config.train.loss_factors.extend(factors.filter(|id| !listed.iter().any(|name| name == id)).map(str::to_owned));
}

impl Draft {
    /// Takes what the config does not have from a recipe: component sections, and settings of a recipe `with_settings`.
    ///
    /// Such settings are keys of `[train]`, `[rollout]` and `[[reward]]` that the user did not set. Returns all that it took, in words.
    pub fn merge_recipe(&mut self, name: &str, text: &str, with_settings: bool) -> Result<Vec<String>> {
        let origin = format!("recipe `{name}`");
        let defaults: &[&str] = if with_settings { &DEFAULT_SECTIONS } else { &[] };
        let (mut components, mut settings) = (Vec::new(), Vec::new());
        for (section, value) in tables::parse(text, &origin)? {
            if COMPONENT_SECTIONS.contains(&section.as_str()) {
                if !self.table.contains_key(&section) {
                    components.push(section.clone());
                    self.table.insert(section, value);
                }
            } else if defaults.contains(&section.as_str()) {
                check_defaults(&section, &value, &origin)?;
                match value {
                    Value::Table(values) => self.take_values(&section, values, &mut settings),
                    value => self.take_rewards(value, &mut settings),
                }
            } else {
                let known = [&COMPONENT_SECTIONS[..], defaults].concat().join("`, `");
                bail!("{origin} has a section `{section}` (it may hold `{known}`)");
            }
        }
        self.table.insert("recipe".into(), Value::String(name.into()));
        components.extend(settings);
        Ok(components)
    }

    /// Takes the values of `[train]` or `[rollout]` that the user did not set.
    fn take_values(&mut self, section: &str, values: Table, taken: &mut Vec<String>) {
        for (key, value) in values {
            let path = format!("{section}.{key}");
            let here = self.table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let (Value::Table(here), false) = (here, self.given.contains(&path)) {
                taken.push(format!("{path} = {value}"));
                here.insert(key, value);
            }
        }
    }

    /// Takes a recipe's rewards: all of them where the user named none, else the keys that the user's tables of the same component
    /// leave out.
    fn take_rewards(&mut self, rewards: Value, taken: &mut Vec<String>) {
        if !self.given.contains("reward") {
            taken.push("reward".into());
            self.table.insert("reward".into(), rewards);
            return;
        }
        let (Some(Value::Array(own)), Value::Array(rewards)) = (self.table.get_mut("reward"), rewards) else { return };
        for reward in rewards.iter().filter_map(Value::as_table) {
            let id = reward.get("use").and_then(Value::as_str).unwrap_or_default();
            let same = |own: &&mut Table| own.get("use").and_then(Value::as_str) == Some(id);
            for own in own.iter_mut().filter_map(Value::as_table_mut).filter(same) {
                for (key, value) in reward.iter().filter(|(key, _)| key.as_str() != "use") {
                    if !own.contains_key(key) {
                        taken.push(format!("reward.{id}.{key} = {value}"));
                        own.insert(key.clone(), value.clone());
                    }
                }
            }
        }
    }
}

/// Refuses a recipe's `[train]`, `[rollout]` or `[[reward]]` that no config could hold.
fn check_defaults(section: &str, value: &Value, origin: &str) -> Result<()> {
    match section {
        "train" => {
            if value.get("output_dir").is_some() {
                bail!("{origin} sets `train.output_dir` (where a run goes is for its user to say)");
            }
            read_section::<TrainConfig>(section, value.clone(), |_| origin.to_owned()).map(drop)
        }
        "rollout" => read_section::<RolloutConfig>(section, value.clone(), |_| origin.to_owned()).map(drop),
        _ => {
            let Value::Array(rewards) = value else {
                bail!("`[reward]` in {origin} is one table (write `[[reward]]`)")
            };
            rewards.iter().try_for_each(|reward| to_reward(reward.clone(), origin).map(drop))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DEFAULT;

    const TUNED: &str = "[advantage]\nuse = \"a.b\"\n\n[train]\nlearning_rate = 1.0\nseed = 7\n";

    fn draft(sets: &[&str]) -> Draft {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Draft::read(None, DEFAULT, &sets).unwrap()
    }

    #[test]
    fn the_first_revision_holds_components_alone() {
        let error = draft(&[]).merge_recipe("old", TUNED, false).unwrap_err().to_string();
        assert_eq!(
            error,
            "recipe `old` has a section `train` (it may hold `advantage`, `objective`, `mask`, `weight`, `step_control`)"
        );
    }

    #[test]
    fn the_second_sets_what_the_user_did_not() {
        let taken = |sets: &[&str]| draft(sets).merge_recipe("new", TUNED, true).unwrap().join(", ");
        assert_eq!(taken(&[]), "advantage, train.learning_rate = 1.0, train.seed = 7");
        assert_eq!(taken(&["train.seed=3"]), "advantage, train.learning_rate = 1.0");
        assert_eq!(taken(&["train={seed=3}"]), "advantage, train.learning_rate = 1.0");
    }
}
