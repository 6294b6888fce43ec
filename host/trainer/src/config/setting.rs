//! The description of a setting. `#[settings]` of `capo-plugin-derive` takes it from the field.
//! Parsing, refusals, hints and the tables of the documentation read it here.

use std::fmt;

use anyhow::Result;
use capo_plugin::Limits;
pub use capo_plugin_derive::settings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::read::{Why, wanted};

/// A struct of settings: a section, or a table in it.
pub trait Settings: Default + Serialize + DeserializeOwned {
    const SETTINGS: &'static [Setting];
}

/// A setting. The texts are for the tables of configs/README.md and configs/names.md, and have
/// links as these pages have.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub name: &'static str,
    /// The doc comment of its field.
    pub about: &'static str,
    /// True if a table without it is refused.
    pub required: bool,
    /// The effect of leaving it out, if its default is no value.
    pub unset: &'static str,
    /// Unit of a number.
    pub unit: &'static str,
    /// Limits of a number. A number with any limit must also be finite. The upper limit of a 32-bit
    /// number is at most the largest such number.
    pub at_least: Option<f64>,
    pub above: Option<f64>,
    pub at_most: Option<f64>,
    pub below: Option<f64>,
    /// End of the refusal of a number outside of the limits.
    pub hint: &'static str,
    /// The condition without which the setting has no effect: a word that a check of its section
    /// passes to `given`.
    pub needs: &'static str,
    /// Names in TRL's configs, the trainer's and the script's.
    pub trl: &'static [&'static str],
    /// Paths in verl's config, without `actor_rollout_ref`.
    pub verl: &'static [&'static str],
    /// The difference from TRL.
    pub differs: &'static str,
    /// Called by `default()`.
    pub default: fn(&str) -> Option<Value>,
    /// Called by `expected()`.
    pub expected: fn() -> Expected,
}

/// What the type of a setting accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// One of these names.
    Names(&'static [&'static str]),
    /// A value of the Rust type that serde calls so: `u64`, `a boolean`.
    Type(String),
    /// A text, or a value that the type itself describes.
    Text,
}

impl Setting {
    /// A setting `name` of `S` with values of `T`, and nothing else known.
    pub const fn of<S: Settings, T: DeserializeOwned>(name: &'static str) -> Self {
        Self {
            name,
            about: "",
            required: false,
            unset: "none",
            unit: "",
            at_least: None,
            above: None,
            at_most: None,
            below: None,
            hint: "",
            needs: "",
            trl: &[],
            verl: &[],
            differs: "",
            default: |name| Table::try_from(S::default()).ok()?.remove(name),
            expected: expected::<T>,
        }
    }

    /// The default. `None` if the setting is absent by default, or required.
    pub fn default(&self) -> Option<Value> {
        (self.default)(self.name).filter(|_| !self.required)
    }

    /// The values that the setting's type accepts.
    pub fn expected(&self) -> Expected {
        (self.expected)()
    }

    /// True if TRL or verl has the setting under `name`.
    pub(super) fn is_called(&self, name: &str) -> bool {
        let mut in_verl = self.verl.iter().filter_map(|path| path.rsplit('.').next());
        self.trl.contains(&name) || in_verl.any(|last| last == name)
    }

    /// The limits in words, such as `at least 1`. Of the two limits of a whole number, only the one
    /// that `value` exceeds; both without a `value`.
    pub fn limits(&self, is_whole: bool, value: Option<f64>) -> Option<String> {
        if self.at_least.is_none() && self.above.is_none() {
            return None;
        }
        let limits = Limits {
            at_most: self.at_most.filter(|most| *most < f64::from(f32::MAX)),
            ..self.as_limits()
        };
        limits.words(is_whole, value)
    }

    fn as_limits(&self) -> Limits {
        Limits {
            at_least: self.at_least,
            above: self.above,
            at_most: self.at_most,
            below: self.below,
            infinite: false,
        }
    }

    /// Refuses a number outside of the limits.
    fn check(&self, value: &Value) -> Result<(), OutOfRange> {
        let (number, is_whole) = match value {
            Value::Integer(number) => (*number as f64, true),
            Value::Float(number) => (*number, false),
            _ => return Ok(()),
        };
        match self.limits(is_whole, Some(number)) {
            Some(limits) if !self.as_limits().hold(number) => Err(OutOfRange {
                setting: self.name,
                value: match value {
                    // Display writes 1 where Debug writes 1.0.
                    Value::Float(number) => number.to_string(),
                    other => other.to_string(),
                },
                limits,
                hint: self.hint,
            }),
            _ => Ok(()),
        }
    }
}

/// A number outside of its limits. Its sentence has no subject: `is 0 (it must be at least 1)`.
#[derive(Debug)]
pub struct OutOfRange {
    /// Name of the setting, without its section.
    pub setting: &'static str,
    value: String,
    limits: String,
    hint: &'static str,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            value,
            limits,
            hint,
            ..
        } = self;
        let end = if hint.is_empty() { "" } else { "; " };
        write!(f, "is {value} (it must be {limits}{end}{hint})")
    }
}

/// Names of the settings of `S`.
pub fn names<S: Settings>() -> Vec<&'static str> {
    S::SETTINGS.iter().map(|setting| setting.name).collect()
}

/// Refuses the first number outside of its limits.
pub fn check<S: Settings>(settings: &S) -> Result<Option<OutOfRange>> {
    let table = Table::try_from(settings)?;
    Ok(S::SETTINGS
        .iter()
        .filter_map(|setting| Some((setting, table.get(setting.name)?)))
        .find_map(|(setting, value)| setting.check(value).err()))
}

/// The first setting with this need whose value is not its default, and the value.
pub(super) fn given<S: Settings>(settings: &S, needs: &str) -> Option<(&'static str, Value)> {
    let mut table = Table::try_from(settings).ok()?;
    S::SETTINGS
        .iter()
        .filter(|setting| setting.needs == needs)
        .filter_map(|setting| Some((setting, table.remove(setting.name)?)))
        .find(|(setting, value)| setting.default().as_ref() != Some(value))
        .map(|(setting, value)| (setting.name, value))
}

fn expected<T: DeserializeOwned>() -> Expected {
    match wanted::<T>() {
        Some(Why::Name { known, .. }) => Expected::Names(known),
        Some(Why::Value { wanted, .. }) => Expected::Type(wanted),
        _ => Expected::Text,
    }
}
