//! Reads a config from the file, the overrides and the recipe, with messages about errors.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use capo_loader::{ComponentConfig, tables};
use capo_plugin::plain;
use capo_system::files;
use toml::{Table, Value};

use super::check::{check, reward_weights};
use super::hints;
use super::sets::{numbered, parse_set, set};
use super::setting::{Settings, names as names_of};
use super::{Config, EnvironmentConfig, EpisodeConfig, Sizes, TrainConfig, sections};
use crate::reward::{RewardConfig, reads_answer};

/// The sections of components, which recipes fill in.
pub(super) const COMPONENT_SECTIONS: [&str; 5] =
    ["advantage", "objective", "mask", "weight", "step_control"];

/// A config before its components are chosen.
#[derive(Debug)]
pub struct Draft {
    pub(super) table: Table,
    /// Sections and `section.key`s that the user's file and `--set` contain.
    pub(super) given: BTreeSet<String>,
    /// Name of the file, or of the text in its place, for messages.
    origin: String,
    sets: Vec<(String, Value)>,
    pub(super) appended: Appended,
}

/// Ids of components to append to those of a config or recipe.
#[derive(Debug, Clone, Default)]
pub struct Appended {
    pub masks: Vec<String>,
    pub weights: Vec<String>,
    pub step_controls: Vec<String>,
}

impl Appended {
    /// The lists, each with its section and its command-line flag.
    pub(super) fn lists(&self) -> [(&'static str, &'static str, &[String]); 3] {
        [
            ("mask", "--mask", &self.masks),
            ("weight", "--weight", &self.weights),
            ("step_control", "--step-control", &self.step_controls),
        ]
    }
}

impl Draft {
    /// Reads a config file and the `--set section.key=value` overrides. The text `default` replaces
    /// a missing file. It also gives the defaults for a file that holds only components.
    pub fn read(path: Option<&Path>, default: &str, sets: &[String]) -> Result<Self> {
        const DEFAULT: &str = "the default config";
        let (file, mut origin) = match path {
            None => (Table::new(), DEFAULT.to_owned()),
            Some(path) => {
                let origin = format!("`{}`", path.display());
                let text =
                    files::text(path).with_context(|| format!("config {origin} cannot be read"))?;
                (tables::parse(&text, &origin)?, origin)
            }
        };
        let mut table = if path.is_none() {
            tables::parse(default, DEFAULT)?
        } else {
            Table::new()
        };
        if path.is_some() && holds_components_alone(&file) {
            table = tables::parse(default, DEFAULT)?;
            origin = format!("{origin} over {DEFAULT}");
        }
        let tables = file
            .iter()
            .filter_map(|(name, value)| Some((name, value.as_table()?)));
        let given = tables
            .flat_map(|(name, table)| names(name, table))
            .chain(file.keys().cloned())
            .collect();
        table.extend(file);
        let sets = sets
            .iter()
            .map(|set| parse_set(set))
            .collect::<Result<_>>()?;
        let mut draft = Self {
            table,
            given,
            origin,
            sets,
            appended: Appended::default(),
        };
        draft.apply_sets(|path| !is_of_component(path))?;
        Ok(draft)
    }

    /// Origin of the sections or dotted `keys` for a message: the file, `--set` or both.
    pub fn origin(&self, keys: &[&str]) -> String {
        let under = |long: &str, short: &str| {
            long.strip_prefix(short)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let of = |key: &str, path: &str| under(path, key) || under(key, path);
        let sets: Vec<&str> = self
            .sets()
            .filter(|path| keys.iter().any(|key| of(key, path)))
            .collect();
        match &sets[..] {
            [] => self.origin.clone(),
            _ if keys
                .iter()
                .all(|key| sets.iter().any(|path| under(key, path))) =>
            {
                "`--set`".to_owned()
            }
            sets => format!("{} and `--set {}`", self.origin, sets.join("`, `--set ")),
        }
    }

    /// Beginning of a message about settings that do not fit together: the origin of the settings
    /// that `sentence` has in backticks.
    pub fn do_not_fit(&self, sentence: &str) -> String {
        let keys: Vec<&str> = sentence
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|word| word.contains('.'))
            .collect();
        let origin = self.origin(&keys);
        // The sentence may be about a setting whose full name it does not give.
        let sets = if origin == self.origin && !self.sets.is_empty() {
            " and `--set`"
        } else {
            ""
        };
        format!("the settings of {origin}{sets} do not fit together")
    }

    /// True if the user's file or `--set` chooses the data that a model is measured on.
    pub fn names_data(&self) -> bool {
        [
            "data.dataset_name",
            "data.datasets",
            "data.eval_dataset_name",
            "eval.benchmark",
        ]
        .iter()
        .any(|key| self.given.contains(*key))
    }

    /// Drops the recipe: the settings of a run already contain the recipe's values.
    pub fn without_recipe(mut self) -> Self {
        self.table.remove("recipe");
        self
    }

    /// Appends components to those of the config or the recipe.
    pub fn with_appended(self, appended: Appended) -> Self {
        Self { appended, ..self }
    }

    /// Sets `train.device` as a flag has it.
    pub fn on_device(mut self, device: Option<&str>) -> Result<Self> {
        device.map_or(Ok(()), |device| {
            set(&mut self.table, "train.device", device.into())
        })?;
        Ok(self)
    }

    /// Sources of the settings in words: the file, the paths of overrides, appended components.
    pub fn sources(&self) -> String {
        let paths = self.sets().collect::<Vec<_>>().join(", ");
        let file = self.origin.replace('`', "");
        let sets = if paths.is_empty() {
            String::new()
        } else {
            format!("; --set {paths}")
        };
        let lists = self
            .appended
            .lists()
            .into_iter()
            .filter(|(_, _, ids)| !ids.is_empty());
        let appended: String = lists
            .map(|(_, flag, ids)| format!("; {flag} {}", ids.join(", ")))
            .collect();
        file + &sets + &appended
    }

    /// The recipe that the config names.
    pub fn recipe(&self) -> Result<Option<&str>> {
        match self.table.get("recipe") {
            None => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(other) => {
                bail!(
                    "`recipe` in {} is {other} (give a recipe's name as a string)",
                    self.origin(&["recipe"])
                )
            }
        }
    }

    /// The paths of the overrides.
    pub(super) fn sets(&self) -> impl Iterator<Item = &str> {
        self.sets.iter().map(|(path, _)| path.as_str())
    }

    /// The objective's id, once the config has an objective of its own or from a recipe.
    pub(super) fn objective(&self) -> Option<String> {
        let by_set = self
            .sets
            .iter()
            .rev()
            .find(|(path, _)| path == "objective.use")
            .map(|(_, value)| value);
        let id = by_set.or_else(|| self.table.get("objective")?.get("use"))?;
        id.as_str().map(str::to_owned)
    }

    /// Checks all keys and reads the sections.
    pub fn finish(mut self) -> Result<Config> {
        self.apply_components()?;
        let plain = sections().map(|(section, _)| section);
        self.only(&[&["recipe"], &plain[..], &COMPONENT_SECTIONS, &["reward"]].concat())?;
        let reward = |value: Value| to_reward(value, &self.origin(&["reward"]));
        let mut config = Config {
            recipe: self.recipe()?.map(str::to_owned),
            model: self.section("model")?,
            data: self.section("data")?,
            rollout: self.section("rollout")?,
            train: self.section("train")?,
            eval: self.section("eval")?,
            logging: self.section("logging")?,
            warnings: self.section("warnings")?,
            advantage: self.component("advantage")?,
            objective: self.component("objective")?,
            mask: self.components("mask")?,
            weight: self.components("weight")?,
            step_control: self.components("step_control")?,
            environment: self
                .table
                .get("environment")
                .cloned()
                .map(|value| self.environment(value))
                .transpose()?,
            reward: self
                .list("reward")?
                .into_iter()
                .map(reward)
                .collect::<Result<_>>()?,
            sizes: Sizes::default(),
        };
        config.data.answer_is_unread = !config.reward.iter().any(|reward| reads_answer(&reward.id));
        config.sizes = reward_weights(&mut config)
            .and_then(|()| check(&config))
            .map_err(|error| {
                let settings = self.do_not_fit(&error.to_string());
                error.context(settings)
            })?;
        Ok(config)
    }

    /// Reads only the `[[mask]]` and `[[weight]]` tables, for a replay; other sections are allowed.
    pub fn masks_and_weights(mut self) -> Result<(Vec<ComponentConfig>, Vec<ComponentConfig>)> {
        self.take_aliases()?;
        self.apply_components()?;
        Ok((self.components("mask")?, self.components("weight")?))
    }

    /// Refuses sections other than `known`.
    pub fn only(&self, known: &[&str]) -> Result<()> {
        let set = self
            .sets
            .iter()
            .filter_map(|(path, _)| path.split('.').next());
        if let Some(unknown) = self
            .table
            .keys()
            .map(String::as_str)
            .chain(set)
            .find(|key| !known.contains(key))
        {
            bail!(
                "{}: {}",
                self.origin(&[unknown]),
                hints::unknown_section(unknown, known)
            );
        }
        Ok(())
    }

    /// Appends components, then applies the overrides of components.
    fn apply_components(&mut self) -> Result<()> {
        let table = |id: &String| {
            Value::Table(Table::from_iter([(
                "use".to_owned(),
                Value::String(id.clone()),
            )]))
        };
        for (section, _, ids) in self
            .appended
            .clone()
            .lists()
            .into_iter()
            .filter(|(_, _, ids)| !ids.is_empty())
        {
            let mut list = self.list(section)?;
            list.extend(ids.iter().map(table));
            self.table.insert(section.into(), Value::Array(list));
        }
        self.apply_sets(is_of_component)
    }

    /// Applies the overrides whose paths `which` accepts.
    fn apply_sets(&mut self, which: fn(&str) -> bool) -> Result<()> {
        for (path, value) in self.sets.iter().filter(|(path, _)| which(path)) {
            let (section, key) = path.split_once('.').unwrap_or((path, ""));
            match value {
                Value::Table(table) if key.is_empty() => self.given.extend(names(section, table)),
                _ => self.given.extend([format!(
                    "{section}.{}",
                    key.split('.').next().unwrap_or_default()
                )]),
            }
            self.given.insert(section.to_owned());
            let by_name = ["mask", "weight", "step_control", "reward"].contains(&section);
            let path = if by_name {
                numbered(&self.table, section, path)?
            } else {
                path.clone()
            };
            set(&mut self.table, &path, value.clone())?;
        }
        Ok(())
    }

    /// Reads one section; an absent section counts as empty.
    pub fn section<T: Settings>(&self, name: &str) -> Result<T> {
        let value = self
            .table
            .get(name)
            .cloned()
            .unwrap_or_else(|| Value::Table(Table::new()));
        read_section(name, value, |key| self.origin(&[&format!("{name}.{key}")]))
    }

    /// Reads `[environment]`: the environment's own keys, and those of an episode.
    fn environment(&self, value: Value) -> Result<EnvironmentConfig> {
        let origin = self.origin(&["environment"]);
        let mut component = tables::component("[environment]", value, &origin)?;
        let known = names_of::<EpisodeConfig>();
        let (own, others) = component
            .table
            .into_iter()
            .partition(|(key, _)| known.contains(&key.as_str()));
        component.table = others;
        let episode = read_section("environment", Value::Table(own), |_| origin.clone())?;
        Ok(EnvironmentConfig { component, episode })
    }

    pub(super) fn list(&self, name: &str) -> Result<Vec<Value>> {
        tables::list(&self.table, name, &self.origin(&[name]))
    }

    fn components(&self, section: &str) -> Result<Vec<ComponentConfig>> {
        tables::components(&self.table, section, &self.origin(&[section]))
    }

    fn component(&self, section: &str) -> Result<ComponentConfig> {
        match self.table.get(section) {
            None => bail!(
                "`[{section}]` is missing from {}, and no recipe fills it in (name a component with `use = \"...\"`, or take a whole recipe with `recipe = \"grpo\"`)",
                self.origin
            ),
            Some(value) => tables::component(
                &format!("[{section}]"),
                value.clone(),
                &self.origin(&[section]),
            ),
        }
    }
}

/// `train.component_timeout` from a config file or the default config, with overrides, before a
/// recipe is known. On any error it is the default; a later and full reading reports the error.
pub fn component_timeout(path: Option<&Path>, sets: &[String]) -> u64 {
    let draft = Draft::read(path, super::DEFAULT, sets).ok();
    let given = draft.and_then(|draft| {
        draft
            .table
            .get("train")?
            .get("component_timeout")?
            .as_integer()
    });
    given
        .and_then(|seconds| seconds.try_into().ok())
        .unwrap_or(TrainConfig::default().component_timeout)
}

/// The `section.key`s of a section.
fn names(section: &str, table: &Table) -> Vec<String> {
    table.keys().map(|key| format!("{section}.{key}")).collect()
}

/// True for the path of a component's key. Its override applies after a recipe has filled in the
/// component, others before.
fn is_of_component(path: &str) -> bool {
    path.split_once('.').is_some_and(|(section, key)| {
        (COMPONENT_SECTIONS.contains(&section) || section == "reward") && !key.is_empty()
    })
}

/// True if a config file holds tables of components and no other section of a run.
fn holds_components_alone(file: &Table) -> bool {
    let component =
        |key: &str| COMPONENT_SECTIONS.contains(&key) || ["recipe", "reward"].contains(&key);
    !file.is_empty() && file.keys().all(|key| component(key))
}

/// Reads a section; `origin` returns the origin of one of its keys.
pub(super) fn read_section<T: Settings>(
    name: &str,
    value: Value,
    origin: impl Fn(&str) -> String,
) -> Result<T> {
    let known = names_of::<T>();
    let unknown = |table: &Table| {
        table
            .keys()
            .find(|key| !known.contains(&key.as_str()))
            .cloned()
    };
    if let Some(unknown) = value.as_table().and_then(unknown) {
        bail!(
            "`[{name}]` of {}: {}",
            origin(&unknown),
            hints::unknown_key(name, &unknown, &known)
        );
    }
    value.try_into().map_err(|error: toml::de::Error| {
        let parsers = error.to_string();
        // The parser's message ends with the key.
        let key = parsers
            .trim()
            .rsplit_once("in `")
            .map_or("", |(_, key)| key.trim_end_matches('`'));
        let sentence = plain::toml(&parsers);
        let hint = if sentence.ends_with(" is missing") {
            " (configs/README.md lists every key)"
        } else {
            ""
        };
        anyhow::anyhow!("`[{name}]` of {}: {sentence}{hint}", origin(key))
    })
}

pub(super) fn to_reward(value: Value, origin: &str) -> Result<RewardConfig> {
    let ComponentConfig { id, mut table } = tables::component("[[reward]]", value, origin)?;
    let weight = match table.remove("weight") {
        None => 1.0,
        Some(Value::Float(weight)) => weight,
        Some(Value::Integer(weight)) => weight as f64,
        Some(other) => bail!(
            "`weight` of reward `{id}` in {} is {other} (give a number)",
            origin
        ),
    };
    Ok(RewardConfig { id, weight, table })
}
