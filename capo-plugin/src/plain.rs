//! Errors of parsers in the words of a person who writes a file or a command:
//! `a whole number from 0 up` and not `u64`.
//!
//! [`toml`] is for what was written in a config or as keys, and [`json`] for rows and programs'
//! answers, because each calls a table by its own name; both take serde's errors. [`argument`] is
//! for a command's. A sentence that no parser wrote stays as it is.

use std::fmt::Display;

/// The sentence of `error`, which was found in TOML.
pub fn toml(error: &impl Display) -> String {
    said(&error.to_string(), "a table")
}

/// The sentence of `error`, which was found in JSON.
pub fn json(error: &impl Display) -> String {
    said(&error.to_string(), "an object")
}

/// A sentence about a command's argument, without the standard library's words for numbers.
pub fn argument(sentence: &str) -> String {
    const NUMBERS: [(&str, &str); 6] = [
        (
            "invalid digit found in string",
            "give a whole number from 0 up",
        ),
        (
            "cannot parse integer from empty string",
            "give a whole number from 0 up",
        ),
        (
            "number too large to fit in target type",
            "the number is too large",
        ),
        (
            "number too small to fit in target type",
            "the number is too small",
        ),
        ("invalid float literal", "give a number"),
        ("cannot parse float from empty string", "give a number"),
    ];
    NUMBERS
        .iter()
        .fold(sentence.to_owned(), |sentence, (theirs, plain)| {
            sentence.replace(theirs, plain)
        })
}

/// Place at which a parser found an error. A parser's sentence ends with its place.
enum Place<'a> {
    /// At a key, such as `train.max_steps`.
    Key(&'a str),
    /// At ` at line 1 column 5`.
    Line(&'a str),
    Unknown,
}

impl Place<'_> {
    /// Splits a sentence into what was found and where.
    fn split(sentence: &str) -> (&str, Place<'_>) {
        let key = sentence
            .strip_suffix('`')
            .and_then(|rest| rest.rsplit_once(", in `"));
        if let Some((found, key)) = key.filter(|(_, key)| !key.contains('`')) {
            return (found, Place::Key(key));
        }
        let numbers = |rest: &str| {
            rest.split(" column ")
                .all(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        match sentence.rfind(" at line ") {
            Some(at) if numbers(&sentence[at + " at line ".len()..]) => {
                (&sentence[..at], Place::Line(&sentence[at..]))
            }
            _ => (sentence, Place::Unknown),
        }
    }

    /// A sentence about the value `found`, in the place of which `wanted` should be.
    fn refuse(&self, found: &str, wanted: &str) -> String {
        match self {
            Self::Key(key) => format!("`{key}` is {found} (give {wanted})"),
            Self::Line(line) => format!("expected {wanted}, found {found}{line}"),
            Self::Unknown => format!("expected {wanted}, found {found}"),
        }
    }

    /// A sentence about the value `found`, a name that is none of `known`.
    fn refuse_name(&self, found: &str, known: &str) -> String {
        match self {
            Self::Key(key) => format!("`{key}` is {found} (use {known})"),
            Self::Line(line) => format!("unknown value {found}{line} (use {known})"),
            Self::Unknown => format!("unknown value {found} (use {known})"),
        }
    }

    /// Ends a sentence that does not name the place.
    fn end(&self) -> String {
        match self {
            Self::Key(key) => format!(", in `{key}`"),
            Self::Line(line) => (*line).to_owned(),
            Self::Unknown => String::new(),
        }
    }
}

/// `text` in plain words; `map` is what the format calls a set of keys and values.
fn said(text: &str, map: &str) -> String {
    if text.starts_with("TOML parse error") {
        // The parser shows the line and points to the character.
        return text.to_owned();
    }
    let text = text.trim().replace('\n', ", ");
    let (sentence, place) = Place::split(&text);
    if let Some(mismatch) = sentence
        .strip_prefix("invalid type: ")
        .or_else(|| sentence.strip_prefix("invalid value: "))
        && let Some((found, wanted)) = mismatch.rsplit_once(", expected ")
    {
        return place.refuse(&value(found, map), &kind(wanted, map));
    }
    if let Some(mismatch) = sentence.strip_prefix("invalid length ")
        && let Some((count, wanted)) = mismatch.split_once(", expected ")
    {
        return place.refuse(&format!("a list of {count}"), &kind(wanted, map));
    }
    if let Some(name) = sentence.strip_prefix("missing field ") {
        return format!("key {name} is missing{}", place.end());
    }
    if let Some(name) = sentence.strip_prefix("duplicate field ") {
        return format!("key {name} is there twice{}", place.end());
    }
    if let Some((name, known)) = sentence
        .strip_prefix("unknown variant ")
        .and_then(|rest| rest.split_once(", expected "))
    {
        return place.refuse_name(name, &choices(known));
    }
    if let Some(name) = sentence.strip_prefix("unknown field ") {
        return match name.split_once(", expected ") {
            Some((name, known)) => format!(
                "unknown key {name}{} (known: {})",
                place.end(),
                names(known).join(", ")
            ),
            None => {
                format!(
                    "unknown key {}{}",
                    name.replace(", there are no fields", " (it has no keys)"),
                    place.end()
                )
            }
        };
    }
    if sentence.starts_with("data did not match any variant of ") {
        return format!("it has no form that is known{}", place.end());
    }
    text
}

/// A value that was found, as it was written where that is short.
fn value(found: &str, map: &str) -> String {
    match found {
        "map" => return map.to_owned(),
        "sequence" => return "a list".to_owned(),
        "unit value" | "Option value" => return "null".to_owned(),
        _ => {}
    }
    let plain = |kind: &str| Some(found.strip_prefix(kind)?.trim_matches('`').to_owned());
    let number = || plain("integer ").or_else(|| plain("floating point "));
    let other = || plain("boolean ").or_else(|| plain("string "));
    number().or_else(other).unwrap_or_else(|| found.to_owned())
}

/// Description of the values that the Rust type `wanted` takes, as serde calls it, for a person who
/// writes one. `map` is what the format calls a set of keys and values.
pub fn kind(wanted: &str, map: &str) -> String {
    let known = match wanted {
        "f32" | "f64" => "a number",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "u128" | "usize" => "a whole number from 0 up",
        "a nonzero u8" | "a nonzero u16" | "a nonzero u32" | "a nonzero u64"
        | "a nonzero usize" => "a whole number from 1 up",
        "a boolean" => "`true` or `false`",
        "a borrowed string" | "string or map" | "variant identifier" => "a string",
        "a sequence" => "a list",
        "a map" => map,
        "any valid TOML value" => "a value that TOML has",
        _ if wanted.starts_with("struct ") => map,
        _ if wanted.starts_with("enum ") => "a string",
        _ => return sized(wanted).unwrap_or_else(|| wanted.to_owned()),
    };
    known.to_owned()
}

/// A list of as many entries as a type of a fixed size has.
fn sized(wanted: &str) -> Option<String> {
    let count = ["an array of length ", "a tuple of size "]
        .iter()
        .find_map(|start| wanted.strip_prefix(start));
    let count = count.or_else(|| {
        let (_, count) = wanted.strip_prefix("tuple struct ")?.split_once(" with ")?;
        count.split_once(" element").map(|(count, _)| count)
    });
    count.map(|count| format!("a list of {count}"))
}

/// The names in a parser's list of them: `` one of `a`, `b` `` or `` `a` or `b` ``.
fn names(listed: &str) -> Vec<&str> {
    let listed = listed.trim_start_matches("one of ");
    listed
        .split(", ")
        .flat_map(|part| part.split(" or "))
        .collect()
}

/// The names in a parser's list of them, as a choice.
fn choices(listed: &str) -> String {
    match &names(listed)[..] {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        names => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, from_str};

    use super::json;

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        One,
        Two,
        Three,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    struct Words {
        _choice: Choice,
    }

    #[derive(Deserialize, Debug)]
    #[serde(untagged)]
    enum Form {
        Words { _words: Words },
    }

    fn say<T: for<'de> Deserialize<'de> + std::fmt::Debug>(value: &str) -> String {
        let value: Value = from_str(value).unwrap();
        json(&serde_json::from_value::<T>(value).unwrap_err())
    }

    #[test]
    fn types_have_the_words_of_who_writes_them() {
        assert_eq!(
            say::<f64>("\"a, expected b\""),
            "expected a number, found \"a, expected b\""
        );
        assert_eq!(
            say::<u64>("-1"),
            "expected a whole number from 0 up, found -1"
        );
        assert_eq!(
            say::<usize>("0.5"),
            "expected a whole number from 0 up, found 0.5"
        );
        assert_eq!(
            say::<u8>("256"),
            "expected a whole number from 0 to 255, found 256"
        );
        assert_eq!(say::<i64>("true"), "expected a whole number, found true");
        assert_eq!(
            say::<bool>("null"),
            "expected `true` or `false`, found null"
        );
        assert_eq!(say::<String>("[]"), "expected a string, found a list");
        assert_eq!(say::<Vec<f64>>("{}"), "expected a list, found an object");
        assert_eq!(
            say::<[f64; 2]>("[1.0]"),
            "expected a list of 2, found a list of 1"
        );
        assert_eq!(say::<(f64, f64)>("1"), "expected a list of 2, found 1");
        assert_eq!(say::<Words>("1"), "expected an object, found 1");
        assert_eq!(say::<Choice>("1"), "expected a string, found 1");
        assert_eq!(say::<Form>("1"), "it has no form that is known");
    }

    #[test]
    fn keys_and_choices_are_listed() {
        assert_eq!(say::<Words>("{}"), "key `_choice` is missing");
        assert_eq!(
            say::<Words>("{\"a\": 1}"),
            "unknown key `a` (known: `_choice`)"
        );
        assert_eq!(
            say::<Words>("{\"_choice\": \"four\"}"),
            "unknown value `four` (use `one`, `two` or `three`)"
        );
    }

    #[test]
    fn arguments_that_are_no_numbers_are_told_so() {
        let said =
            |error: &dyn std::fmt::Display| super::argument(&format!("invalid value: {error}"));
        assert_eq!(
            said(&"x".parse::<u64>().unwrap_err()),
            "invalid value: give a whole number from 0 up"
        );
        assert_eq!(
            said(&"".parse::<u64>().unwrap_err()),
            "invalid value: give a whole number from 0 up"
        );
        assert_eq!(
            said(&"300".parse::<u8>().unwrap_err()),
            "invalid value: the number is too large"
        );
        assert_eq!(
            said(&"x".parse::<f64>().unwrap_err()),
            "invalid value: give a number"
        );
    }

    #[test]
    fn the_place_is_named() {
        assert_eq!(
            super::toml(&"invalid type: map, expected f64\nin `a.b`\n"),
            "`a.b` is a table (give a number)"
        );
        assert_eq!(
            super::toml(&"unknown variant `x`, expected `a` or `b`, in `k`"),
            "`k` is `x` (use `a` or `b`)"
        );
        let line = json(&from_str::<f64>("\n [1]").unwrap_err());
        assert_eq!(line, "expected a number, found a list at line 2 column 1");
        assert_eq!(
            json(&from_str::<Vec<f64>>("[1,").unwrap_err()),
            "EOF while parsing a value at line 1 column 3"
        );
        assert_eq!(
            super::toml(&"`x` is 3 (give less)"),
            "`x` is 3 (give less)",
            "not from a parser"
        );
        let shown = "TOML parse error at line 1, column 5\n  |\n1 | not TOML\n  |     ^\n";
        assert_eq!(
            super::toml(&shown),
            shown,
            "the lines that the parser shows stay lines"
        );
    }
}
