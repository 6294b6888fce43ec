//! The keys of a component, described at the fields of a struct.

use abi_stable::std_types::RString;
use serde_json::Value;

use crate::value::shown;
use crate::wire::{KeyDoc, KeyLimits, KeyRange};
use crate::{KeyValue, Limits, Numeric, PluginError, Table};

/// A struct that is read from a component's table. [`keys`](macro@crate::keys) and
/// [`component`](macro@crate::component) implement it.
///
/// A component that is made from its keys, but does not hold them, implements it by hand:
///
/// ```
/// use capo_plugin::prelude::*;
/// use capo_plugin::wire::KeyDoc;
/// use capo_plugin::{Keys, Table};
///
/// #[keys]
/// struct CapKeys {
///     /// Largest probability that is kept.
///     #[key(above = 0, at_most = 1)]
///     probability: f32,
/// }
///
/// /// Drops tokens that are too probable.
/// struct Cap {
///     max_logp: f32,
/// }
///
/// impl Keys for Cap {
///     const ABOUT: &'static str = "Drops tokens that are too probable.";
///
///     fn keys() -> Vec<KeyDoc> {
///         CapKeys::keys()
///     }
///
///     fn from_table(table: &Table) -> Result<Self, PluginError> {
///         let keys = CapKeys::from_table(table)?;
///         Ok(Self { max_logp: keys.probability.ln() })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not describe its keys",
    note = "write `#[component(...)]` or `#[keys]` above the struct"
)]
pub trait Keys: Sized {
    /// The meaning of the struct, in one line.
    const ABOUT: &'static str;

    /// Descriptions of all keys, in the order of the fields.
    fn keys() -> Vec<KeyDoc>;

    /// Reads the keys from a table, which may have others.
    ///
    /// # Errors
    ///
    /// The first value that is refused.
    fn from_table(table: &Table) -> Result<Self, PluginError>;
}

impl Table {
    /// Reads `T`, whose keys are all keys that the table may have.
    ///
    /// # Errors
    ///
    /// The first unknown key, or the first value that `T` refuses.
    pub fn read<T: Keys>(&self) -> Result<T, PluginError> {
        let keys = T::keys();
        let known: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        self.check_known(&known)?;
        T::from_table(self)
    }
}

/// One key of a table, as the attributes of its field describe it.
#[doc(hidden)]
pub struct Key<T> {
    name: &'static str,
    about: &'static str,
    default: Option<T>,
    limits: Limits,
    search: Option<KeyRange>,
    not_with: Vec<&'static str>,
}

impl<T: KeyValue> Key<T> {
    pub fn new(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about,
            default: None,
            limits: Limits::default(),
            search: None,
            not_with: Vec::new(),
        }
    }

    pub fn default(mut self, value: T) -> Self {
        self.default = Some(value);
        self
    }

    pub fn infinite(mut self) -> Self
    where
        T: Numeric,
    {
        self.limits.infinite = true;
        self
    }

    pub fn at_least(mut self, limit: f64) -> Self
    where
        T: Numeric,
    {
        self.limits.at_least = Some(limit);
        self
    }

    pub fn above(mut self, limit: f64) -> Self
    where
        T: Numeric,
    {
        self.limits.above = Some(limit);
        self
    }

    pub fn at_most(mut self, limit: f64) -> Self
    where
        T: Numeric,
    {
        self.limits.at_most = Some(limit);
        self
    }

    pub fn below(mut self, limit: f64) -> Self
    where
        T: Numeric,
    {
        self.limits.below = Some(limit);
        self
    }

    pub fn search(mut self, low: f64, high: f64) -> Self
    where
        T: Numeric,
    {
        let whole = T::wanted().whole;
        self.search = Some(KeyRange { low, high, whole });
        self
    }

    /// Excludes another key: only one of the two may have a value that is not `false`.
    pub fn not_with(mut self, other: &'static str) -> Self {
        self.not_with.push(other);
        self
    }

    /// The description for a host.
    pub fn describe(&self) -> KeyDoc {
        let default = self.default.as_ref().map(T::json);
        let default = default.or_else(|| T::absent().map(|_| "null".to_owned()));
        let wanted = T::wanted();
        KeyDoc {
            name: self.name.into(),
            about: self.about.into(),
            default: default.map(Into::into).into(),
            range: self.search.into(),
            limits: KeyLimits::new(self.limits, wanted.whole),
            wanted: wanted.one.into(),
            choices: wanted.choices.iter().map(|name| (*name).into()).collect(),
        }
    }

    /// The value in `table`, or the default.
    pub fn read(self, table: &Table) -> Result<T, PluginError> {
        let Some(value) = table.get(self.name) else {
            let name = self.name;
            let missing = || PluginError::config(format!("key `{name}` is missing"));
            return self.default.or_else(T::absent).ok_or_else(missing);
        };
        let wanted = T::wanted();
        let refuse = |request: String| {
            let value = shown(value, &wanted);
            PluginError::config(format!("`{}` is {value} ({request})", self.name))
        };
        let read = T::read(value).map_err(refuse)?;
        let mut outside = None;
        read.numbers(&mut |number| {
            if outside.is_none() && !self.limits.hold(number) {
                outside = Some(number);
            }
        });
        if let Some(limits) = outside.and_then(|_| self.limits.words(wanted.whole, outside)) {
            return Err(refuse(format!("it must be {limits}")));
        }
        let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        let mut others = self.not_with.iter();
        match others.find(|other| table.get(other).is_some_and(is_set)) {
            Some(other) if is_set(value) => Err(PluginError::config(format!(
                "`{other}` and `{}` are both given (keep one)",
                self.name
            ))),
            _ => Ok(read),
        }
    }
}

impl KeyDoc {
    /// [`default`](Self#structfield.default) as text.
    pub fn default(&self) -> Option<&str> {
        self.default.as_ref().map(RString::as_str).into_option()
    }
}

/// The description of a type, for a key without one of its own. Called in constants, so that a
/// missing description is a compile error.
#[doc(hidden)]
pub const fn described<T: KeyValue>() -> &'static str {
    assert!(
        !T::ABOUT.is_empty(),
        "describe the key in a doc comment of its field"
    );
    T::ABOUT
}
