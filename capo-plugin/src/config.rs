//! Component tables: the keys that a type reads, and error messages about unknown keys.

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor,
};
use serde::{Deserialize, Serialize, Serializer};

use crate::{PluginError, Reduction, plain};

/// Keys that `T` reads from its table, or `None` when `T` is not a plain struct.
pub fn known_keys<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    let mut keys = None;
    // The probe always fails. It has recorded the keys by then.
    let _ = T::deserialize(Probe(&mut keys));
    keys
}

/// The candidate nearest to `typed`, if it is near enough to be a typing error.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(typed, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Reads a component from its table, written as JSON text.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T, PluginError> {
    let table: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json)
        .map_err(|error| PluginError::config(format!("the table is not JSON: {error}")))?;
    if let Some(known) = known_keys::<T>()
        && let Some(unknown) = table.keys().find(|key| !known.contains(&key.as_str()))
    {
        return Err(PluginError::config(unknown_key(unknown, known)));
    }
    T::deserialize(Table(table)).map_err(|error| PluginError::config(plain::toml(&error)))
}

/// Error message about an unknown key.
pub fn unknown_key(typed: &str, known: &[&str]) -> String {
    match (nearest(typed, known.iter().copied()), known) {
        (Some(near), _) => format!("unknown key `{typed}` (did you mean `{near}`?)"),
        (None, []) => format!("unknown key `{typed}` (it has no keys)"),
        (None, known) => format!("unknown key `{typed}` (known: `{}`)", known.join("`, `")),
    }
}

/// A table whose errors name the key that they are about.
struct Table(serde_json::Map<String, serde_json::Value>);

impl<'de> Deserializer<'de> for Table {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_map(Entries {
            entries: self.0.into_iter(),
            next: None,
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        serde_json::Value::Object(self.0).deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map struct identifier ignored_any
    }
}

struct Entries {
    entries: serde_json::map::IntoIter,
    /// The entry whose key was read last.
    next: Option<(String, serde_json::Value)>,
}

impl<'de> MapAccess<'de> for Entries {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Self::Error> {
        self.next = self.entries.next();
        self.next
            .as_ref()
            .map(|(key, _)| seed.deserialize(key.as_str().into_deserializer()))
            .transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, Self::Error> {
        let (key, value) = self
            .next
            .take()
            .ok_or_else(|| Error::custom("a value without a key"))?;
        seed.deserialize(value).map_err(|error| {
            let (sentence, key) = (error.to_string(), format!("`{key}`"));
            // Some types name the key themselves.
            if sentence.contains(&key) {
                error
            } else {
                Error::custom(format!("{sentence}, in {key}"))
            }
        })
    }
}

struct Probe<'p>(&'p mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = Some(fields);
        self.deserialize_any(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = Some(&[]);
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("probe"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

impl<'de> Deserialize<'de> for Reduction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const NAMED: [(&str, Reduction); 4] = Reduction::NAMED;
        const NAMES: &[&str] = &[NAMED[0].0, NAMED[1].0, NAMED[2].0, NAMED[3].0];
        let name = String::deserialize(deserializer)?;
        let found = Self::NAMED.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, reduction)| *reduction)
            .ok_or_else(|| D::Error::unknown_variant(&name, NAMES))
    }
}

impl Serialize for Reduction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.name().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, Debug)]
    #[serde(try_from = "Table")]
    struct Checked(f32);

    #[derive(Deserialize)]
    struct Empty {}

    #[derive(Deserialize)]
    struct Table {
        max_nats: f32,
    }

    impl TryFrom<Table> for Checked {
        type Error = String;
        fn try_from(table: Table) -> Result<Self, String> {
            let Table { max_nats } = table;
            if max_nats > 0.0 {
                Ok(Self(max_nats))
            } else {
                Err(format!("`max_nats` is {max_nats}"))
            }
        }
    }

    #[test]
    fn keys_are_found_through_try_from_and_without_deny_unknown_fields() {
        assert_eq!(known_keys::<Checked>(), Some(&["max_nats"][..]));
        assert_eq!(known_keys::<Empty>(), Some(&[][..]));
        assert_eq!(known_keys::<Vec<f32>>(), None);
    }

    #[test]
    fn sentences_name_the_nearest_key() {
        let say = |json| parse::<Checked>(json).unwrap_err().to_string();
        assert_eq!(
            say(r#"{"max_nat": 1}"#),
            "unknown key `max_nat` (did you mean `max_nats`?)"
        );
        assert_eq!(say(r#"{"zz": 1}"#), "unknown key `zz` (known: `max_nats`)");
        assert_eq!(say("{}"), "key `max_nats` is missing");
        assert_eq!(
            say(r#"{"max_nats": "x"}"#),
            "`max_nats` is \"x\" (give a number)"
        );
        assert_eq!(say(r#"{"max_nats": -1}"#), "`max_nats` is -1");
        assert!(parse::<Checked>(r#"{"max_nats": 3}"#).is_ok_and(|checked| checked.0 == 3.0));
    }
}
