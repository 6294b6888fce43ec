//! The description of a setting. `#[settings]` of `host-settings` takes it from the field; parsing,
//! refusals, hints and the tables of the documentation read it here.

use anyhow::{Result, bail};
pub use host_settings::settings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};
use toml::{Table, Value};

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
    /// Limits of a number, which is also finite if it has any. A number of 32 bits has the largest
    /// of these as its limit.
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
    /// Behind the methods of these names.
    pub default: fn(&str) -> Option<Value>,
    pub expected: fn() -> String,
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

    /// The default; `None` if that is no value, or none is possible.
    pub fn default(&self) -> Option<Value> {
        (self.default)(self.name).filter(|_| !self.required)
    }

    /// Names of the possible values in serde's words, or the name of their type.
    pub fn expected(&self) -> String {
        (self.expected)()
    }

    /// The limits in words: `at least 1`. Of two limits of a whole number, only the one that
    /// `value` exceeds, unless that is not given.
    pub fn limits(&self, is_whole: bool, value: Option<f64>) -> Option<String> {
        let most = self.at_most.filter(|most| *most < f64::from(f32::MAX));
        Some(match (self.at_least, self.above, most, self.below) {
            (Some(0.0), None, Some(high), None) => format!("between 0 and {high}"),
            (Some(low), None, Some(high), None) => match value {
                None => format!("from {low} to {high}"),
                Some(value) if value < low => format!("at least {low}"),
                Some(_) => format!("at most {high}"),
            },
            (Some(low), None, None, Some(high)) => format!("{low} or more and less than {high}"),
            (None, Some(low), Some(high), None) => format!("above {low} and at most {high}"),
            (None, Some(low), ..) => format!("finite and above {low}"),
            (Some(low), ..) if is_whole => format!("at least {low}"),
            (Some(0.0), ..) => "finite, 0 or more".to_owned(),
            (Some(low), ..) => format!("finite and at least {:e}", low as f32),
            (None, None, ..) => return None,
        })
    }

    /// Refuses a number outside of the limits; `key` is the setting in the message.
    fn check(&self, key: &str, value: &Value) -> Result<()> {
        let (number, is_whole, shown) = match value {
            Value::Integer(number) => (*number as f64, true, number.to_string()),
            Value::Float(number) => (*number, false, number.to_string()),
            _ => return Ok(()),
        };
        let Some(limits) = self.limits(is_whole, Some(number)) else {
            return Ok(());
        };
        let (low, high) = (
            self.at_least.unwrap_or(f64::MIN),
            self.at_most.unwrap_or(f64::MAX),
        );
        let inside =
            number >= low && number <= high && self.above.is_none_or(|above| number > above);
        if inside && self.below.is_none_or(|below| number < below) {
            return Ok(());
        }
        let hint = if self.hint.is_empty() {
            String::new()
        } else {
            format!("; {}", self.hint)
        };
        bail!("{key} is {shown} (it must be {limits}{hint})");
    }
}

/// Names of the settings of `S`.
pub fn names<S: Settings>() -> Vec<&'static str> {
    S::SETTINGS.iter().map(|setting| setting.name).collect()
}

/// Refuses numbers outside of their limits; `named` is a setting in the message.
pub fn check<S: Settings>(settings: &S, named: impl Fn(&str) -> String) -> Result<()> {
    let table = Table::try_from(settings)?;
    let given = S::SETTINGS
        .iter()
        .filter_map(|setting| Some((setting, table.get(setting.name)?)));
    given
        .into_iter()
        .try_for_each(|(setting, value)| setting.check(&named(setting.name), value))
}

/// The first setting with this need whose value is not its default, and the value.
pub(super) fn given<S: Settings>(settings: &S, needs: &str) -> Option<(&'static str, Value)> {
    let mut table = Table::try_from(settings).ok()?;
    let needing = S::SETTINGS.iter().filter(|setting| setting.needs == needs);
    let values = needing.filter_map(|setting| Some((setting, table.remove(setting.name)?)));
    let mut given = values.filter(|(setting, value)| setting.default().as_ref() != Some(value));
    given.next().map(|(setting, value)| (setting.name, value))
}

/// The type or the values that `T` expects, from its error about an empty text; empty if `T`
/// accepts one.
fn expected<T: DeserializeOwned>() -> String {
    let refused = T::deserialize(StrDeserializer::<Error>::new(""))
        .err()
        .map(|error| error.to_string());
    let words = refused
        .as_deref()
        .and_then(|said| Some(said.split_once("expected ")?.1));
    words
        .unwrap_or_default()
        .trim_start_matches("one of ")
        .to_owned()
}
