//! Reads values of TOML. A [`Refusal`] has in its fields where a value stands and why it is
//! refused.

use std::fmt::{self, Display};

use capo_plugin::plain;
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use toml::Value;

/// A value that a type does not accept.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The keys that lead to the value, the outermost first.
    pub keys: Vec<String>,
    pub why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    /// A value of another type, or out of its type's range.
    Value {
        found: String,
        wanted: String,
    },
    /// A name that is not among the names of an enum.
    Name {
        found: String,
        known: &'static [&'static str],
    },
    UnknownKey {
        key: String,
        known: &'static [&'static str],
    },
    MissingKey(&'static str),
    RepeatedKey(&'static str),
    /// A sentence of the type itself.
    Sentence(String),
}

/// Reads `value`.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> Result<T, Refusal> {
    T::deserialize(Reader(value))
}

/// What a type accepts, in the words of its own refusal of an empty text.
pub(super) fn wanted<T: DeserializeOwned>() -> Option<Why> {
    T::deserialize(StrDeserializer::<Refusal>::new(""))
        .err()
        .map(|refusal| refusal.why)
}

impl Refusal {
    fn new(why: Why) -> Self {
        let keys = Vec::new();
        Self { keys, why }
    }

    /// True if a required key is not given.
    pub fn is_missing(&self) -> bool {
        matches!(self.why, Why::MissingKey(_))
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self.why, Why::UnknownKey { .. })
    }

    /// The dotted key of the value.
    pub fn key(&self) -> String {
        self.keys.join(".")
    }

    /// Puts the key of an enclosing table in front.
    fn inside(mut self, key: String) -> Self {
        self.keys.insert(0, key);
        self
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key();
        let place = match key.as_str() {
            "" => String::new(),
            key => format!(", in `{key}`"),
        };
        match &self.why {
            Why::Value { found, wanted } => {
                let wanted = plain::kind(wanted, "a table");
                match key.as_str() {
                    "" => write!(f, "expected {wanted}, found {found}"),
                    key => write!(f, "`{key}` is {found} (give {wanted})"),
                }
            }
            Why::Name { found, known } => {
                write!(f, "`{key}` is `{found}` (use {})", choice(known))
            }
            Why::UnknownKey { key, known } => {
                write!(f, "unknown key `{key}`{place} (known: {})", list(known))
            }
            Why::MissingKey(key) => write!(f, "key `{key}` is missing{place}"),
            Why::RepeatedKey(key) => write!(f, "key `{key}` is there twice{place}"),
            Why::Sentence(sentence) => write!(f, "{sentence}{place}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl de::Error for Refusal {
    fn custom<T: Display>(sentence: T) -> Self {
        Self::new(Why::Sentence(sentence.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::new(Why::Value {
            found: shown(found),
            wanted: wanted.to_string(),
        })
    }

    fn invalid_value(found: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Self::invalid_type(found, wanted)
    }

    fn invalid_length(length: usize, wanted: &dyn Expected) -> Self {
        Self::new(Why::Value {
            found: format!("a list of {length}"),
            wanted: wanted.to_string(),
        })
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        Self::new(Why::Name {
            found: found.to_owned(),
            known,
        })
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::new(Why::UnknownKey {
            key: key.to_owned(),
            known,
        })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(Why::MissingKey(key))
    }

    fn duplicate_field(key: &'static str) -> Self {
        Self::new(Why::RepeatedKey(key))
    }
}

/// A value as it is written in TOML, where that is short.
fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(value) => format!("{value:?}"),
        Unexpected::Str(text) => format!("{text:?}"),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

/// The names as a list: `` `a`, `b` ``.
pub(super) fn list(names: &[&str]) -> String {
    format!("`{}`", names.join("`, `"))
}

/// The names as a choice: `` `a`, `b` or `c` ``.
pub(super) fn choice(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or `{last}`", list(others)),
        names => list(names),
    }
}

/// A value that is being read.
struct Reader(Value);

impl<'de> Deserializer<'de> for Reader {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.0 {
            Value::String(text) => visitor.visit_string(text),
            Value::Integer(number) => visitor.visit_i64(number),
            Value::Float(number) => visitor.visit_f64(number),
            Value::Boolean(value) => visitor.visit_bool(value),
            Value::Datetime(date) => visitor.visit_string(date.to_string()),
            Value::Array(values) => visitor.visit_seq(Values(values.into_iter())),
            Value::Table(table) => visitor.visit_map(Entries {
                entries: table.into_iter(),
                next: None,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        // The variants of settings hold no values, so that a variant is always a text.
        match self.0 {
            Value::String(variant) => visitor.visit_enum(variant.into_deserializer()),
            other => Reader(other).deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The entries of a list.
struct Values(std::vec::IntoIter<Value>);

impl<'de> SeqAccess<'de> for Values {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refusal> {
        self.0
            .next()
            .map(|value| seed.deserialize(Reader(value)))
            .transpose()
    }
}

/// The entries of a table.
struct Entries {
    entries: toml::map::IntoIter<String, Value>,
    /// The entry whose key was read last.
    next: Option<(String, Value)>,
}

impl<'de> MapAccess<'de> for Entries {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refusal> {
        self.next = self.entries.next();
        self.next
            .as_ref()
            .map(|(key, _)| seed.deserialize(key.as_str().into_deserializer()))
            .transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        let (key, value) = self
            .next
            .take()
            .ok_or_else(|| de::Error::custom("a value without a key"))?;
        seed.deserialize(Reader(value))
            .map_err(|refusal: Refusal| refusal.inside(key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        One,
        Two,
        Three,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Section {
        _choice: Choice,
        _count: Option<u64>,
        #[serde(default)]
        _more: BTreeMap<String, Vec<f64>>,
    }

    fn refused(toml: &str) -> Refusal {
        let table: toml::Table = toml.parse().unwrap();
        read::<Section>(Value::Table(table)).unwrap_err()
    }

    #[test]
    fn says_the_key_and_what_to_give() {
        for (toml, sentence) in [
            (
                "_choice = \"four\"",
                "`_choice` is `four` (use `one`, `two` or `three`)",
            ),
            ("_choice = 1", "`_choice` is 1 (give a string)"),
            (
                "_count = -1",
                "`_count` is -1 (give a whole number from 0 up)",
            ),
            (
                "_count = 0.5",
                "`_count` is 0.5 (give a whole number from 0 up)",
            ),
            (
                "_count = \"x\"",
                "`_count` is \"x\" (give a whole number from 0 up)",
            ),
            ("_more.a = 1", "`_more.a` is 1 (give a list)"),
            ("_more = []", "`_more` is a list (give a table)"),
            ("_count = 1", "key `_choice` is missing"),
            (
                "b = 1",
                "unknown key `b` (known: `_choice`, `_count`, `_more`)",
            ),
        ] {
            assert_eq!(refused(toml).to_string(), sentence);
        }
        assert_eq!(refused("_more.a = 1").keys, ["_more", "a"]);
        assert!(refused("").is_missing());
    }

    #[test]
    fn says_what_a_type_accepts() {
        assert!(matches!(wanted::<Choice>(), Some(Why::Name { known, .. }) if known.len() == 3));
        assert!(matches!(wanted::<u64>(), Some(Why::Value { wanted, .. }) if wanted == "u64"));
        assert!(wanted::<String>().is_none());
    }
}
