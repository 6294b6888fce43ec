//! Chooses the recipe that fills in the components that a config leaves open.

use anyhow::{Result, anyhow, bail};
use capo_loader::offer::{Offer, OfferedRecipe, Origin};
use capo_loader::registry::Registry;
use capo_loader::{component_names, tables};
use capo_plugin::{Point, nearest};
use host_data::Preset;
use toml::{Table, Value};

use super::aliases::Alias;
use super::draft::{COMPONENT_SECTIONS, read_section, to_reward, using};
use super::setting::names;
use super::{Config, Draft, EnvironmentConfig, EpisodeConfig, RolloutConfig, TrainConfig, hints};
use crate::algorithms::{DEFAULT_RECIPE, OF_PLUGINS};
use crate::reward::RewardConfig;

/// The sections for which a recipe may set defaults.
const DEFAULT_SECTIONS: [&str; 3] = ["train", "rollout", "reward"];

/// A run's settings, and their sources.
#[derive(Debug)]
pub struct Resolved {
    pub config: Config,
    /// Lines for the header of a run: the file with its overrides, and the values from a recipe.
    pub sources: Vec<String>,
    /// TRL's settings among them that became components.
    aliases: Vec<Alias>,
}

impl Resolved {
    /// Refuses images without the components of TRL's settings, before an error elsewhere names a
    /// component that no user chose.
    pub fn check_aliases(&self, registry: &Registry) -> Result<()> {
        self.aliases
            .iter()
            .try_for_each(|alias| alias.check(registry))
    }
}

/// Chooses the recipe for the components that `draft` leaves open, and finishes the draft.
///
/// A recipe that the config names comes first. A config that names both an advantage and an
/// objective needs no recipe. Otherwise the recipe is the only one that a plugin offers, else the
/// built-in default.
pub fn resolve(registry: &Registry, mut draft: Draft) -> Result<Resolved> {
    let chosen = match draft.recipe()? {
        Some(name) => Some(recipe(registry, name)?),
        None if ["advantage", "objective"]
            .iter()
            .all(|section| draft.table.contains_key(*section)) =>
        {
            None
        }
        None => Some(registry.default_recipe(DEFAULT_RECIPE)?),
    };
    let mut sources = vec![format!("config     {}", draft.sources())];
    let mut rewarded = draft.given.contains("reward");
    if let Some(recipe) = chosen {
        let taken = draft.merge_recipe(&recipe.name, &recipe.toml)?;
        if !taken.is_empty() {
            sources.push(format!(
                "recipe     {} ({}): {}",
                recipe.name,
                recipe.origin.name(),
                taken.join(", ")
            ));
            sources.push(format!("           {}", recipe.about));
        }
        rewarded |= taken.iter().any(|setting| setting == "reward");
    }
    if !rewarded {
        sources.extend(draft.take_preset_reward());
    }
    let aliases = draft.take_aliases()?;
    sources.extend(aliases.iter().map(Alias::line));
    let mut config = draft.finish()?;
    if let (false, Some(preset)) = (rewarded, config.data.preset) {
        let benchmarks = config.eval.benchmark.iter().filter_map(|one| one.preset);
        preset.check_beside(
            config
                .data
                .datasets
                .iter()
                .filter_map(|one| one.preset)
                .chain(benchmarks),
        )?;
    }
    check_keys(&config, registry)?;
    add_loss_factors(&mut config, registry, &aliases);
    Ok(Resolved {
        config,
        sources,
        aliases,
    })
}

/// The recipe called `name`; an error names the plugin that brings it.
fn recipe<'r>(registry: &'r Registry, name: &str) -> Result<&'r OfferedRecipe> {
    registry.recipe(name).map_err(|error| {
        let library = OF_PLUGINS
            .iter()
            .find(|(_, recipes)| recipes.contains(&name));
        library.map_or(error, |(library, _)| {
            anyhow!("recipe `{name}` is of a plugin (give `--plugin {library}`)")
        })
    })
}

/// Refuses keys of a built-in advantage or objective that are settings elsewhere, and says where.
/// Also refuses unknown keys of environment and rewards: the message of the component itself could
/// not suggest the keys that the host reads.
fn check_keys(config: &Config, registry: &Registry) -> Result<()> {
    for (section, component) in [
        ("advantage", &config.advantage),
        ("objective", &config.objective),
    ] {
        let id = &component.id;
        let offer = registry
            .offers()
            .into_iter()
            .find(|offer| offer.id == *id && offer.origin == Origin::BuiltIn);
        let Some(Offer { keys, .. }) = offer else {
            continue;
        };
        for key in component.table.keys() {
            if keys.iter().any(|known| known.name == *key) {
                continue;
            }
            if let Some(advice) = hints::advice(key) {
                bail!("`[{section}]` with `use = \"{id}\"`: unknown key `{key}` ({advice})");
            }
        }
    }
    let environment = config
        .environment
        .iter()
        .map(|EnvironmentConfig { component, .. }| {
            (
                "[environment]",
                Point::Environment,
                &component.id,
                &component.table,
                names::<EpisodeConfig>(),
            )
        });
    let rewards = config.reward.iter().map(|RewardConfig { id, table, .. }| {
        ("[[reward]]", Point::Reward, id, table, vec!["weight"])
    });
    for (section, point, id, table, own) in environment.chain(rewards) {
        let offer = registry
            .offers()
            .into_iter()
            .find(|offer| offer.point == point && offer.id == *id);
        let Some(Offer { keys, .. }) = offer else {
            continue;
        };
        let known: Vec<&str> = keys
            .iter()
            .map(|key| key.name.as_str())
            .chain(own.iter().copied())
            .collect();
        let unknown = table.keys().find(|key| {
            // A component that lists no key may read any.
            let may_be_read = keys.is_empty() && nearest(key, own.iter().copied()).is_none();
            !known.contains(&key.as_str()) && !may_be_read
        });
        if let Some(typed) = unknown {
            let sentence = hints::unknown_key(section.trim_matches(['[', ']']), typed, &known);
            bail!("`{section}` with `use = \"{id}\"`: {sentence}");
        }
    }
    Ok(())
}

/// Adds the components of TRL's settings to `train.loss_factors`. The objective must be TRL's, or
/// have TRL's key for the level of its ratio. The loss of any other objective may not be
/// proportional to the advantages.
fn add_loss_factors(config: &mut Config, registry: &Registry, aliases: &[Alias]) {
    let offers = registry.offers();
    let is_trls = offers
        .iter()
        .filter(|offer| offer.id == config.objective.id)
        .any(|offer| {
            let mut keys = offer.keys.iter();
            offer.origin == Origin::BuiltIn
                || keys.any(|key| key.name == "importance_sampling_level")
        });
    if !is_trls {
        return;
    }
    let names = [
        component_names(&config.mask),
        component_names(&config.weight),
    ]
    .concat();
    let factors = aliases
        .iter()
        .filter_map(Alias::loss_factor)
        .filter(|id| names.iter().any(|name| name == id));
    let listed = config.train.loss_factors.clone();
    config.train.loss_factors.extend(
        factors
            .filter(|id| !listed.iter().any(|name| name == id))
            .map(str::to_owned),
    );
}

impl Draft {
    /// Fills in from a recipe what the config lacks: component sections and other settings.
    ///
    /// Such settings are keys of `[train]`, `[rollout]` and `[[reward]]` that the user did not set.
    /// Returns the names of all that it took.
    pub fn merge_recipe(&mut self, name: &str, text: &str) -> Result<Vec<String>> {
        let origin = format!("recipe `{name}`");
        let mut components = Vec::new();
        let mut settings = Vec::new();
        for (section, value) in tables::parse(text, &origin)? {
            if COMPONENT_SECTIONS.contains(&section.as_str()) {
                if !self.table.contains_key(&section) {
                    components.push(section.clone());
                    self.table.insert(section, value);
                }
            } else if DEFAULT_SECTIONS.contains(&section.as_str()) {
                check_defaults(&section, &value, &origin)?;
                match value {
                    Value::Table(values) => self.take_values(&section, values, &mut settings),
                    value => self.take_rewards(value, &mut settings),
                }
            } else {
                let known = [&COMPONENT_SECTIONS[..], &DEFAULT_SECTIONS]
                    .concat()
                    .join("`, `");
                bail!("{origin} has a section `{section}` (it may hold `{known}`)");
            }
        }
        self.table
            .insert("recipe".into(), Value::String(name.into()));
        components.extend(settings);
        Ok(components)
    }

    /// Fills in the reward that grades answers as the prompts of `data.preset` ask for them, and
    /// returns a line for the header.
    fn take_preset_reward(&mut self) -> Option<String> {
        let preset = self.table.get("data")?.get("preset")?.clone();
        let reward = preset.clone().try_into::<Preset>().ok()?.reward();
        self.table
            .insert("reward".into(), Value::Array(vec![using(reward)]));
        Some(format!("preset     {}: reward {reward}", preset.as_str()?))
    }

    /// Fills in the values of `[train]` or `[rollout]` that the user did not set.
    fn take_values(&mut self, section: &str, values: Table, taken: &mut Vec<String>) {
        for (key, value) in values {
            let path = format!("{section}.{key}");
            let here = self
                .table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            if let (Value::Table(here), false) = (here, self.given.contains(&path)) {
                taken.push(format!("{path} = {value}"));
                here.insert(key, value);
            }
        }
    }

    /// Fills in a recipe's rewards. If the user named none, these are all its rewards. Otherwise
    /// they are the keys that the user's tables of the same component leave out.
    fn take_rewards(&mut self, rewards: Value, taken: &mut Vec<String>) {
        if !self.given.contains("reward") {
            taken.push("reward".into());
            self.table.insert("reward".into(), rewards);
            return;
        }
        let (Some(Value::Array(own)), Value::Array(rewards)) =
            (self.table.get_mut("reward"), rewards)
        else {
            return;
        };
        for reward in rewards.iter().filter_map(Value::as_table) {
            let id = reward
                .get("use")
                .and_then(Value::as_str)
                .unwrap_or_default();
            for own in own.iter_mut().filter_map(Value::as_table_mut) {
                if own.get("use").and_then(Value::as_str) != Some(id) {
                    continue;
                }
                for (key, value) in reward {
                    if !own.contains_key(key) {
                        taken.push(format!("reward.{id}.{key} = {value}"));
                        own.insert(key.clone(), value.clone());
                    }
                }
            }
        }
    }
}

/// Refuses a recipe's `[train]`, `[rollout]` or `[[reward]]` that is invalid in a config.
fn check_defaults(section: &str, value: &Value, origin: &str) -> Result<()> {
    match section {
        "train" => {
            if value.get("output_dir").is_some() {
                bail!("{origin} sets `train.output_dir` (where a run goes is for its user to say)");
            }
            read_section::<TrainConfig>(section, value.clone(), |_| origin.to_owned()).map(drop)
        }
        "rollout" => {
            read_section::<RolloutConfig>(section, value.clone(), |_| origin.to_owned()).map(drop)
        }
        _ => {
            let Value::Array(rewards) = value else {
                bail!("`[reward]` in {origin} is one table (write `[[reward]]`)")
            };
            rewards
                .iter()
                .try_for_each(|reward| to_reward(reward.clone(), origin).map(drop))
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
    fn a_recipe_sets_what_the_user_did_not() {
        let taken = |sets: &[&str]| draft(sets).merge_recipe("new", TUNED).unwrap().join(", ");
        assert_eq!(
            taken(&[]),
            "advantage, train.learning_rate = 1.0, train.seed = 7"
        );
        assert_eq!(
            taken(&["train.seed=3"]),
            "advantage, train.learning_rate = 1.0"
        );
        assert_eq!(
            taken(&["train={seed=3}"]),
            "advantage, train.learning_rate = 1.0"
        );
    }

    #[test]
    fn a_preset_brings_the_reward_that_reads_its_answers() {
        let of = |sets: &str| {
            let sets: Vec<&str> = ["data.dataset_name=rows.jsonl"]
                .into_iter()
                .chain(sets.split_whitespace())
                .collect();
            let Resolved {
                config, sources, ..
            } = resolve(&Registry::open(&[]).unwrap(), draft(&sets)).unwrap();
            let shown = sources.iter().any(|line| line.starts_with("preset "));
            format!("{} {} {shown}", config.reward[0].id, config.reward[0].table)
        };
        assert_eq!(of(""), "exact_match  false");
        for (preset, expected) in [
            ("verl", "math  true"),
            ("math", "math  true"),
            ("gsm8k", "number  true"),
        ] {
            assert_eq!(of(&format!("data.preset={preset}")), expected);
        }
        assert_eq!(
            of("data.preset=verl reward.math.anchored=false"),
            "math anchored = false\n true"
        );
        assert_eq!(
            of("data.preset=verl reward=[{use=\"number\"}]"),
            "number  false"
        );
    }
}
