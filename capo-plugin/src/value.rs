//! Values of keys: what a table may hold for a type, and how the type reads it.

use serde_json::Value;

use crate::Reduction;

/// The type of a key.
///
/// Implemented for numbers, `bool`, `String`, and for lists, arrays and `Option`s of such types.
/// [`Choice`](crate::Choice) implements it for an enum without fields.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the type of a key",
    note = "a key is a number, `bool`, `String`, a list or an `Option` of them, an enum with \
            `#[derive(Choice)]`, or a type that implements `KeyValue`"
)]
pub trait KeyValue: Sized {
    /// Meaning of a key whose field has no doc comment; empty if such a field needs one.
    const ABOUT: &'static str = "";

    /// Values that a table may hold.
    fn wanted() -> Wanted;

    /// The value of a table.
    ///
    /// # Errors
    ///
    /// What to do instead, in the imperative: `give a number`. [`Wanted::request`] is such a text.
    fn read(value: &Value) -> Result<Self, String>;

    /// The value as JSON text.
    fn json(&self) -> String;

    /// The value of a key that the table leaves out; `None` if the table must have the key.
    fn absent() -> Option<Self> {
        None
    }

    /// Calls `see` with each number in the value.
    fn numbers(&self, see: &mut dyn FnMut(f64)) {
        let _ = see;
    }
}

/// A number, or several of them, which limits and a search are for.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a number, so it has no limits")]
pub trait Numeric: KeyValue {}

/// Values that a table may hold for a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// One value, such as `a number`.
    pub one: String,
    /// Several values, such as `numbers`.
    pub several: String,
    /// The only values, if the type lists them.
    pub choices: Vec<&'static str>,
    /// True if the value is a whole number.
    pub whole: bool,
}

impl Wanted {
    /// Any value that `one` describes; `several` describes more than one of them.
    pub fn any(one: impl Into<String>, several: impl Into<String>) -> Self {
        Self {
            one: one.into(),
            several: several.into(),
            choices: Vec::new(),
            whole: false,
        }
    }

    /// One of these strings.
    pub fn one_of(choices: &[&'static str]) -> Self {
        Self {
            choices: choices.to_vec(),
            ..Self::any("a string", "strings")
        }
    }

    /// What to do in the place of a value that is not wanted.
    pub fn request(&self) -> String {
        match &self.choices[..] {
            [] => format!("give {}", self.one),
            [only] => format!("use `{only}`"),
            [others @ .., last] => format!("use `{}` or `{last}`", others.join("`, `")),
        }
    }
}

/// A value in an error message.
pub(crate) fn shown(value: &Value, wanted: &Wanted) -> String {
    match value {
        Value::Object(_) => "a table".to_owned(),
        Value::Array(list) if value.to_string().len() > LONGEST => {
            format!("a list of {}", list.len())
        }
        Value::String(text) if !wanted.choices.is_empty() => format!("`{text}`"),
        // As a person writes it: 2 for 2.0.
        Value::Number(number) => {
            let text = number.to_string();
            text.strip_suffix(".0").unwrap_or(&text).to_owned()
        }
        _ => value.to_string(),
    }
}

/// Length of the longest list that an error message shows, in bytes.
const LONGEST: usize = 60;

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl KeyValue for $type {
            fn wanted() -> Wanted {
                Wanted::any("a number", "numbers")
            }

            fn read(value: &Value) -> Result<Self, String> {
                let number = value.as_f64().ok_or_else(|| Self::wanted().request())?;
                Ok(number as $type)
            }

            fn json(&self) -> String {
                serde_json::to_string(self).unwrap_or_default()
            }

            fn numbers(&self, see: &mut dyn FnMut(f64)) {
                see((*self).into());
            }
        }

        impl Numeric for $type {}
    )*};
}

macro_rules! whole_numbers {
    ($($type:ty: $one:expr),*) => {$(
        impl KeyValue for $type {
            fn wanted() -> Wanted {
                Wanted { whole: true, ..Wanted::any($one, "whole numbers") }
            }

            fn read(value: &Value) -> Result<Self, String> {
                let number = match value.as_u64() {
                    Some(number) => number.try_into().ok(),
                    None => value.as_i64().and_then(|number| number.try_into().ok()),
                };
                number.ok_or_else(|| Self::wanted().request())
            }

            fn json(&self) -> String {
                self.to_string()
            }

            fn numbers(&self, see: &mut dyn FnMut(f64)) {
                see(*self as f64);
            }
        }

        impl Numeric for $type {}
    )*};
}

floats!(f32, f64);
whole_numbers!(
    i32: "a whole number",
    i64: "a whole number",
    u8: format!("a whole number from 0 to {}", u8::MAX),
    u16: format!("a whole number from 0 to {}", u16::MAX),
    u32: format!("a whole number from 0 to {}", u32::MAX),
    u64: "a whole number from 0 up",
    usize: "a whole number from 0 up"
);

impl KeyValue for bool {
    fn wanted() -> Wanted {
        Wanted::any("`true` or `false`", "`true` or `false`")
    }

    fn read(value: &Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| Self::wanted().request())
    }

    fn json(&self) -> String {
        self.to_string()
    }
}

impl KeyValue for String {
    fn wanted() -> Wanted {
        Wanted::any("a string", "strings")
    }

    fn read(value: &Value) -> Result<Self, String> {
        let text = value.as_str().ok_or_else(|| Self::wanted().request())?;
        Ok(text.to_owned())
    }

    fn json(&self) -> String {
        Value::from(self.as_str()).to_string()
    }
}

impl<T: KeyValue> KeyValue for Option<T> {
    const ABOUT: &'static str = T::ABOUT;

    fn wanted() -> Wanted {
        T::wanted()
    }

    fn read(value: &Value) -> Result<Self, String> {
        if value.is_null() {
            return Ok(None);
        }
        T::read(value).map(Some)
    }

    fn json(&self) -> String {
        self.as_ref().map_or_else(|| "null".to_owned(), T::json)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }

    fn numbers(&self, see: &mut dyn FnMut(f64)) {
        if let Some(value) = self {
            value.numbers(see);
        }
    }
}

impl<T: Numeric> Numeric for Option<T> {}

impl<T: KeyValue> KeyValue for Vec<T> {
    fn wanted() -> Wanted {
        Wanted::any(
            format!("a list of {}", T::wanted().several),
            format!("lists of {}", T::wanted().several),
        )
    }

    fn read(value: &Value) -> Result<Self, String> {
        let list = value.as_array().ok_or_else(|| Self::wanted().request())?;
        list.iter()
            .map(|entry| T::read(entry).map_err(|_| Self::wanted().request()))
            .collect()
    }

    fn json(&self) -> String {
        list_json(self)
    }

    fn numbers(&self, see: &mut dyn FnMut(f64)) {
        for entry in self {
            entry.numbers(see);
        }
    }
}

impl<T: Numeric> Numeric for Vec<T> {}

impl<T: KeyValue, const N: usize> KeyValue for [T; N] {
    fn wanted() -> Wanted {
        let several = T::wanted().several;
        Wanted::any(
            format!("a list of {N} {several}"),
            format!("lists of {N} {several}"),
        )
    }

    fn read(value: &Value) -> Result<Self, String> {
        let request = || Self::wanted().request();
        let entries = Vec::<T>::read(value).map_err(|_| request())?;
        entries.try_into().map_err(|_| request())
    }

    fn json(&self) -> String {
        list_json(self)
    }

    fn numbers(&self, see: &mut dyn FnMut(f64)) {
        for entry in self {
            entry.numbers(see);
        }
    }
}

impl<T: Numeric, const N: usize> Numeric for [T; N] {}

impl KeyValue for Reduction {
    const ABOUT: &'static str = "How losses become one number.";

    fn wanted() -> Wanted {
        Wanted::one_of(&Self::NAMED.map(|(name, _)| name))
    }

    fn read(value: &Value) -> Result<Self, String> {
        let name = value.as_str();
        let found = Self::NAMED.iter().find(|(known, _)| Some(*known) == name);
        found
            .map(|(_, reduction)| *reduction)
            .ok_or_else(|| Self::wanted().request())
    }

    fn json(&self) -> String {
        format!("\"{}\"", self.name().unwrap_or_default())
    }
}

fn list_json<T: KeyValue>(list: &[T]) -> String {
    let entries: Vec<String> = list.iter().map(T::json).collect();
    format!("[{}]", entries.join(","))
}
