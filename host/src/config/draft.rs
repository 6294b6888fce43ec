//! Reading a config: the file, the overrides, the recipe, and sentences about what is wrong.

use std::path::Path;

use anyhow::{Context, Result, bail};
use capo_loader::{ComponentConfig, files};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::check::check;
use super::{Config, Sizes};
use crate::reward::RewardConfig;

/// Most parts of a dotted key: what is nested without end cannot even be dropped.
const MOST_PARTS: usize = 16;

/// The sections that recipes fill in and that belong to components.
const COMPONENT_SECTIONS: [&str; 3] = ["advantage", "objective", "mask"];

/// A config before its components are chosen.
#[derive(Debug)]
pub struct Draft {
    table: Table,
    origin: String,
    sets: Vec<(String, Value)>,
}

impl Draft {
    /// Reads a config file, or the text `default`, and the `--set section.key=value` overrides.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is not TOML, or an override is not of that form.
    pub fn read(path: Option<&Path>, default: &str, sets: &[String]) -> Result<Self> {
        let (text, origin) = match path {
            None => (default.to_owned(), "the default config".to_owned()),
            Some(path) => {
                let text = files::text(path).with_context(|| format!("config `{}` cannot be read", path.display()))?;
                (text, format!("`{}`", path.display()))
            }
        };
        let table = parse_table(&text, &origin)?;
        let origin = if sets.is_empty() { origin } else { format!("{origin} and `--set`") };
        let sets = sets.iter().map(|set| parse_set(set)).collect::<Result<_>>()?;
        let mut draft = Self { table, origin, sets };
        draft.apply_sets(false)?;
        Ok(draft)
    }

    /// What the settings come from, for a sentence.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The recipe that the config names.
    ///
    /// # Errors
    ///
    /// When `recipe` is not a string.
    pub fn recipe(&self) -> Result<Option<&str>> {
        match self.table.get("recipe") {
            None => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(other) => bail!("`recipe` in {} is {other} (give a recipe's name as a string)", self.origin),
        }
    }

    /// Whether the config itself chooses both components that a run cannot do without.
    #[must_use]
    pub fn names_components(&self) -> bool {
        self.table.contains_key("advantage") && self.table.contains_key("objective")
    }

    /// Takes the component sections that the config does not have from a recipe.
    ///
    /// # Errors
    ///
    /// When the recipe is not TOML, or holds anything but component sections.
    pub fn merge_recipe(&mut self, name: &str, text: &str) -> Result<()> {
        let recipe = parse_table(text, &format!("recipe `{name}`"))?;
        for (section, value) in recipe {
            if !COMPONENT_SECTIONS.contains(&section.as_str()) {
                bail!(
                    "recipe `{name}` has a section `{section}` (a recipe holds `advantage`, `objective` and `mask` only)"
                );
            }
            self.table.entry(section).or_insert(value);
        }
        self.table.insert("recipe".into(), Value::String(name.into()));
        Ok(())
    }

    /// Checks every key and reads the sections.
    ///
    /// # Errors
    ///
    /// An unknown key with the nearest known one, a value of the wrong type, a missing section, settings that do not fit
    /// together.
    pub fn finish(mut self) -> Result<Config> {
        self.apply_sets(true)?;
        self.only(&[
            "recipe",
            "model",
            "data",
            "rollout",
            "train",
            "eval",
            "logging",
            "advantage",
            "objective",
            "mask",
            "reward",
        ])?;
        let mut config = Config {
            recipe: self.recipe()?.map(str::to_owned),
            model: self.section("model")?,
            data: self.section("data")?,
            rollout: self.section("rollout")?,
            train: self.section("train")?,
            eval: self.section("eval")?,
            logging: self.section("logging")?,
            advantage: self.component("advantage")?,
            objective: self.component("objective")?,
            mask: self
                .list("mask")?
                .into_iter()
                .map(|value| self.to_component("[[mask]]", value))
                .collect::<Result<_>>()?,
            reward: self.list("reward")?.into_iter().map(|value| self.to_reward(value)).collect::<Result<_>>()?,
            sizes: Sizes::default(),
        };
        config.sizes =
            check(&config).with_context(|| format!("the settings of {} do not fit together", self.origin))?;
        Ok(config)
    }

    /// The `[[mask]]` tables alone, for a replay; other sections may stand beside them.
    ///
    /// # Errors
    ///
    /// A table without `use`, an override of something that is not there.
    pub fn masks(mut self) -> Result<Vec<ComponentConfig>> {
        self.apply_sets(true)?;
        self.list("mask")?.into_iter().map(|value| self.to_component("[[mask]]", value)).collect()
    }

    /// Refuses sections other than `known`.
    ///
    /// # Errors
    ///
    /// The first unknown section, with the nearest known one.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            Some(unknown) => bail!("{}: {}", self.origin, capo_plugin::unknown_key(unknown, known)),
            None => Ok(()),
        }
    }

    fn apply_sets(&mut self, components: bool) -> Result<()> {
        for (path, value) in &self.sets {
            let first = path.split('.').next().unwrap_or_default();
            if COMPONENT_SECTIONS.contains(&first) == components {
                set(&mut self.table, path, value.clone())?;
            }
        }
        Ok(())
    }

    /// Reads one section; an absent one is empty.
    ///
    /// # Errors
    ///
    /// An unknown key with the nearest known one, a value of the wrong type, a missing key.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.table.get(name).cloned().unwrap_or_else(|| Value::Table(Table::new()));
        self.read_section(&format!("[{name}]"), value)
    }

    fn read_section<T: DeserializeOwned>(&self, name: &str, value: Value) -> Result<T> {
        if let (Value::Table(table), Some(known)) = (&value, capo_plugin::known_keys::<T>())
            && let Some(unknown) = table.keys().find(|key| !known.contains(&key.as_str()))
        {
            bail!("`{name}` of {}: {}", self.origin, capo_plugin::unknown_key(unknown, known));
        }
        value.try_into().map_err(|error: toml::de::Error| {
            let sentence = error.to_string().trim().replace('\n', ", ");
            let hint = if sentence.starts_with("missing field") { " (configs/README.md lists every key)" } else { "" };
            anyhow::anyhow!("`{name}` of {}: {sentence}{hint}", self.origin)
        })
    }

    fn list(&self, name: &str) -> Result<Vec<Value>> {
        match self.table.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) => Ok(values.clone()),
            Some(_) => bail!("`[{name}]` in {} is one table (write `[[{name}]]`: there can be several)", self.origin),
        }
    }

    fn component(&self, section: &str) -> Result<ComponentConfig> {
        match self.table.get(section) {
            None => bail!(
                "`[{section}]` is missing from {}, and no recipe fills it in (name a component with `use = \"...\"`, or take a whole recipe with `recipe = \"grpo\"`)",
                self.origin
            ),
            Some(value) => self.to_component(&format!("[{section}]"), value.clone()),
        }
    }

    fn to_reward(&self, value: Value) -> Result<RewardConfig> {
        let ComponentConfig { id, mut table } = self.to_component("[[reward]]", value)?;
        let weight = match table.remove("weight") {
            None => 1.0,
            Some(Value::Float(weight)) => weight,
            Some(Value::Integer(weight)) => weight as f64,
            Some(other) => bail!("`weight` of reward `{id}` in {} is {other} (give a number)", self.origin),
        };
        Ok(RewardConfig { id, weight, table })
    }

    fn to_component(&self, section: &str, value: Value) -> Result<ComponentConfig> {
        let Value::Table(mut table) = value else { bail!("`{section}` in {} is not a table", self.origin) };
        match table.remove("use") {
            Some(Value::String(id)) => Ok(ComponentConfig { id, table }),
            Some(other) => {
                bail!("`use` of `{section}` in {} is {other} (give a component's id as a string)", self.origin)
            }
            None => {
                bail!("`{section}` in {} has no `use` (give a component's id; `host plugins` lists them)", self.origin)
            }
        }
    }
}

fn parse_table(text: &str, origin: &str) -> Result<Table> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        anyhow::anyhow!("{origin} is not TOML: line {line}: {}", error.message())
    })
}

/// Key and value of a `--set`.
pub(crate) fn parse_set(text: &str) -> Result<(String, Value)> {
    let Some((path, value)) = text.split_once('=') else {
        bail!("`--set {text}` has no `=` (write `--set section.key=value`)");
    };
    if path.split('.').count() > MOST_PARTS {
        bail!(
            "`--set {}...` names a key of more than {MOST_PARTS} parts (write `--set section.key=value`)",
            &path[..path.floor_char_boundary(60)]
        );
    }
    // A bare word is a string: `--set train.lr_scheduler_type=constant`.
    let value = format!("v = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("v"));
    let bare = || Value::String(text[path.len() + 1..].to_owned());
    Ok((path.trim().to_owned(), value.unwrap_or_else(bare)))
}

/// Puts `value` at the dotted `path`.
pub(crate) fn set(table: &mut Table, path: &str, value: Value) -> Result<()> {
    let (last, parents) = path
        .split('.')
        .collect::<Vec<_>>()
        .split_last()
        .map(|(last, parents)| (*last, parents.to_vec()))
        .unwrap_or_default();
    if last.is_empty() || parents.iter().any(|part| part.is_empty()) {
        bail!("`--set {path}=...` has an empty key (write `--set section.key=value`)");
    }
    let mut here = table;
    let mut parts = parents.into_iter().peekable();
    while let Some(part) = parts.next() {
        let next = here.entry(part).or_insert_with(|| Value::Table(Table::new()));
        here = match next {
            Value::Table(inner) => inner,
            Value::Array(items) => {
                let (index, count) = (parts.next().unwrap_or_default(), items.len());
                let item = index.parse::<usize>().ok().and_then(|index| items.get_mut(index));
                match item {
                    Some(Value::Table(inner)) => inner,
                    _ => bail!(
                        "`--set {path}=...`: `{part}` has entries 0 to {} (write `--set {part}.0.key=value`)",
                        count.saturating_sub(1)
                    ),
                }
            }
            _ => bail!("`--set {path}=...`: `{part}` is a value, not a section"),
        };
    }
    here.insert(last.to_owned(), value);
    Ok(())
}
