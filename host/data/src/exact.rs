//! JSON whose numbers keep all of their digits, and whose objects keep the order of their keys.

use std::fmt;

use indexmap::IndexMap;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::value::RawValue;
use serde_json::{Error, Result};

/// Most levels of lists and objects in each other. serde_json, with which a component may read
/// arguments, ends at 127.
const MOST_LEVELS: usize = 120;

/// A value of JSON.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// A number as it was written.
    Number(String),
    Text(String),
    List(Vec<Json>),
    /// If a key was written twice, its last value counts, as in Python.
    Object(IndexMap<String, Json>),
}

impl Json {
    /// The value that is the whole of `text`.
    pub fn parse(text: &str) -> Result<Self> {
        build(serde_json::from_str::<&RawValue>(text)?.get(), 0)
    }

    /// The value with which `text` begins, and what follows it.
    pub fn first(text: &str) -> Result<(Self, &str)> {
        let text = text.trim_start_matches([' ', '\t', '\n', '\r']);
        let raw = <&RawValue>::deserialize(&mut serde_json::Deserializer::from_str(text))?.get();
        Ok((build(raw, 0)?, &text[raw.len()..]))
    }

    /// The value under `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.object()?.get(key)
    }

    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self {
            Some(text)
        } else {
            None
        }
    }

    /// The values of a list; none of anything else.
    pub fn list(&self) -> &[Self] {
        if let Self::List(values) = self {
            values
        } else {
            &[]
        }
    }

    pub fn object(&self) -> Option<&IndexMap<String, Self>> {
        if let Self::Object(values) = self {
            Some(values)
        } else {
            None
        }
    }

    /// True if the value has a type of JSON Schema. One that is not known fits everything.
    pub fn is_a(&self, name: &str) -> bool {
        match name {
            "string" => matches!(self, Self::Text(_)),
            "integer" => matches!(self, Self::Number(number) if is_whole(number)),
            "number" => matches!(self, Self::Number(_)),
            "boolean" => matches!(self, Self::Bool(_)),
            "array" => matches!(self, Self::List(_)),
            "object" => matches!(self, Self::Object(_)),
            "null" => matches!(self, Self::Null),
            _ => true,
        }
    }

    /// True if both are the same value: `2` is `2.0`, and the order of keys does not count.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) if is_integer(one) && is_integer(two) => {
                one == two
            }
            (Self::Number(one), Self::Number(two)) => one.parse::<f64>() == two.parse::<f64>(),
            (Self::List(one), Self::List(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.is(two))
            }
            (Self::Object(one), Self::Object(two)) => {
                one.len() == two.len()
                    && one
                        .iter()
                        .all(|(key, one)| two.get(key).is_some_and(|two| one.is(two)))
            }
            _ => self == other,
        }
    }

    /// The word for what it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// True for an integer that is written without a fraction and an exponent.
pub(crate) fn is_integer(number: &str) -> bool {
    number
        .trim_start_matches('-')
        .bytes()
        .all(|byte| byte.is_ascii_digit())
}

/// True for a number without a fraction, however it is written.
fn is_whole(number: &str) -> bool {
    is_integer(number)
        || number
            .parse()
            .is_ok_and(|number: f64| number.fract() == 0.0)
}

/// The value that `raw` writes, which serde_json has found to be JSON. A list or an object reads
/// each of its values anew, so that numbers keep their digits.
fn build(raw: &str, level: usize) -> Result<Json> {
    if level > MOST_LEVELS {
        return Err(Error::custom(format!(
            "lists and objects are nested more than {MOST_LEVELS} levels deep"
        )));
    }
    Ok(match raw.as_bytes() {
        [b'n', ..] => Json::Null,
        [b't', ..] => Json::Bool(true),
        [b'f', ..] => Json::Bool(false),
        [b'"', ..] => Json::Text(serde_json::from_str(raw)?),
        [b'[', ..] => {
            let raw: Vec<&RawValue> = serde_json::from_str(raw)?;
            let mut values = Vec::with_capacity(raw.len());
            for value in raw {
                values.push(build(value.get(), level + 1)?);
            }
            Json::List(values)
        }
        [b'{', ..] => {
            let raw: IndexMap<String, &RawValue> = serde_json::from_str(raw)?;
            let mut values = IndexMap::with_capacity(raw.len());
            for (key, value) in raw {
                values.insert(key, build(value.get(), level + 1)?);
            }
            Json::Object(values)
        }
        _ => Json::Number(raw.to_owned()),
    })
}

/// Compact JSON on one line.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(number) => f.write_str(number),
            Self::Text(text) => f.write_str(&quoted(text)?),
            Self::List(values) => {
                f.write_str("[")?;
                for (place, value) in values.iter().enumerate() {
                    let comma = if place == 0 { "" } else { "," };
                    write!(f, "{comma}{value}")?;
                }
                f.write_str("]")
            }
            Self::Object(values) => {
                f.write_str("{")?;
                for (place, (key, value)) in values.iter().enumerate() {
                    let comma = if place == 0 { "" } else { "," };
                    write!(f, "{comma}{}:{value}", quoted(key)?)?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(text: &str) -> std::result::Result<String, fmt::Error> {
    serde_json::to_string(text).map_err(|_| fmt::Error)
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        RawValue::from_string(self.to_string())
            .map_err(ser::Error::custom)?
            .serialize(serializer)
    }
}

/// Only serde_json's text can be read so, because other formats have no raw values.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        build(raw.get(), 0).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_digits_and_the_order_of_keys() {
        let text = r#"{"z":[123456789012345678901234567890,-0.10,1e400,1E5],"a":{"é\n\"":null,"b":[true,false,{}]}}"#;
        assert_eq!(Json::parse(text).unwrap().to_string(), text);
        let transported: Json =
            serde_json::from_str(&serde_json::to_string(&Json::parse(text).unwrap()).unwrap())
                .unwrap();
        assert_eq!(transported.to_string(), text);
        assert_eq!(
            Json::parse(r#" {"a": 1, "b" : 2, "a": 3}"#)
                .unwrap()
                .to_string(),
            r#"{"a":3,"b":2}"#
        );
    }

    #[test]
    fn the_first_value_ends_where_its_json_ends() {
        let (value, rest) = Json::first("\n {\"a\": \"}</x>\"} </x>").unwrap();
        assert_eq!(
            (value.to_string().as_str(), rest),
            (r#"{"a":"}</x>"}"#, " </x>")
        );
        for text in ["", "{", "{\"a\": 1", "{'a': 1}", "\"\n\"", "[1 2]", "01x"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn refuses_deep_nesting() {
        let nested = |levels: usize| Json::parse(&("[".repeat(levels) + &"]".repeat(levels)));
        assert_eq!(nested(100).unwrap().to_string().len(), 200);
        let error = nested(100_000).unwrap_err().to_string();
        assert_eq!(
            error,
            "lists and objects are nested more than 120 levels deep"
        );
    }

    #[test]
    fn compares_numbers_by_value() {
        let is = |one: &str, two: &str| Json::parse(one).unwrap().is(&Json::parse(two).unwrap());
        assert!(
            is("2", "2.0") && is("[1e3]", "[1000]") && is(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1.0}"#)
        );
        assert!(
            !is("123456789012345678901", "123456789012345678902")
                && !is("1", "\"1\"")
                && !is("[1]", "[1,1]")
        );
        let integer = |text: &str| Json::parse(text).unwrap().is_a("integer");
        assert!(integer("123456789012345678901234567890") && integer("-2.0") && integer("1e3"));
        assert!(!integer("0.5") && !integer("1e400"));
    }
}
