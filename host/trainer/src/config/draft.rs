//! Reads a config from the file, the overrides and the recipe, with messages about errors.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use capo_loader::{ComponentConfig, tables};
use capo_system::files;
use toml::{Table, Value};

use super::check::{check, reward_weights};
use super::hints;
use super::read::read;
use super::sets::{numbered, parse_set, set};
use super::setting::{Settings, names as names_of};
use super::{Config, ConfigError, EnvironmentConfig, EpisodeConfig, Sizes, TrainConfig, sections};
use crate::reward::{RewardConfig, reads_answer};

/// The sections of components, which recipes fill in.
pub(super) const COMPONENT_SECTIONS: [&str; 5] =
    ["advantage", "objective", "mask", "weight", "step_control"];

/// A config before its components are chosen.
#[derive(Debug)]
pub struct Draft {
    pub(super) table: Table,
    /// Sections and settings such as `train.seed` that the user's file and `--set` contain.
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
        let sets: Vec<&str> = self
            .sets()
            .filter(|set| {
                keys.iter()
                    .any(|key| is_within(set, key) || is_within(key, set))
            })
            .collect();
        if sets.is_empty() {
            self.origin.clone()
        } else if keys
            .iter()
            .all(|key| sets.iter().any(|set| is_within(key, set)))
        {
            "`--set`".to_owned()
        } else {
            format!("{} and `--set {}`", self.origin, sets.join("`, `--set "))
        }
    }

    /// Puts the origin of the settings that `error` is about in front of its sentence.
    pub fn do_not_fit(&self, error: Error) -> Error {
        let settings = ConfigError::of(&error).map_or(&[][..], ConfigError::settings);
        let keys: Vec<&str> = settings.iter().map(String::as_str).collect();
        let origin = self.origin(&keys);
        // The error may be about a setting that it does not name.
        let sets = if origin == self.origin && !self.sets.is_empty() {
            " and `--set`"
        } else {
            ""
        };
        error.context(format!(
            "the settings of {origin}{sets} do not fit together"
        ))
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
        let rewards = self
            .list("reward")?
            .into_iter()
            .map(|value| to_reward(value, &self.origin(&["reward"])))
            .collect::<Result<_>>()?;
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
            reward: rewards,
            sizes: Sizes::default(),
        };
        config.data.answer_is_unread = !config.reward.iter().any(|reward| reads_answer(&reward.id));
        config.sizes = reward_weights(&mut config)
            .and_then(|()| check(&config))
            .map_err(|error| self.do_not_fit(error))?;
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
            let hint = hints::unknown_section(unknown, known);
            let sentence = format!("{}: {hint}", self.origin(&[unknown]));
            return Err(ConfigError::unknown(unknown, sentence).into());
        }
        Ok(())
    }

    /// Appends components, then applies the overrides of components.
    fn apply_components(&mut self) -> Result<()> {
        for (section, _, ids) in self.appended.clone().lists() {
            if ids.is_empty() {
                continue;
            }
            let mut list = self.list(section)?;
            list.extend(ids.iter().map(|id| using(id)));
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
            None => {
                let sentence = format!(
                    "`[{section}]` is missing from {}, and no recipe fills it in (name a \
                     component with `use = \"...\"`, or take a whole recipe with \
                     `recipe = \"grpo\"`)",
                    self.origin
                );
                Err(ConfigError::missing(section, sentence).into())
            }
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

/// The table of a component without keys of its own.
pub(super) fn using(id: &str) -> Value {
    Value::Table(Table::from_iter([("use".to_owned(), id.into())]))
}

/// True if the dotted `path` is `outer`, or a key in it.
fn is_within(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The settings in a section, such as `train.seed`.
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
    let mut keys = value.as_table().into_iter().flat_map(Table::keys);
    if let Some(unknown) = keys.find(|key| !known.contains(&key.as_str())) {
        let hint = hints::unknown_key(name, unknown, &known);
        let sentence = format!("`[{name}]` of {}: {hint}", origin(unknown));
        return Err(ConfigError::unknown(format!("{name}.{unknown}"), sentence).into());
    }
    read(value).map_err(|refusal| {
        let key = refusal.key();
        let setting = match key.as_str() {
            "" => name.to_owned(),
            key => format!("{name}.{key}"),
        };
        let sentence = format!("`[{name}]` of {}: {refusal}", origin(&key));
        if refusal.is_missing() {
            let hint = "(configs/README.md lists every key)";
            ConfigError::missing(setting, format!("{sentence} {hint}")).into()
        } else if refusal.is_unknown() {
            ConfigError::unknown(setting, sentence).into()
        } else {
            ConfigError::wrong_type(setting, sentence).into()
        }
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
