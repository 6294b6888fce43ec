//! Checks of how a component reads its table.

use serde_json::{Value, json};

use super::outcome::{Outcome, Verdict, failed, skipped, success};
use super::subject::{Live, Subject, is_panic};
use crate::{ErrorKind, PluginError};

/// Checks that the component can be built. If it lacks required keys, the other checks are skipped.
pub(super) fn creation(subject: &Subject<'_>) -> Verdict {
    let given = if subject.table.is_empty() {
        "an empty table"
    } else {
        "the keys given"
    };
    match subject.create() {
        Ok(_) => success(format!("it is made from {given}")),
        Err(error) if error.kind() == ErrorKind::CONFIG => {
            Ok(Outcome::unchecked(subject.needs_keys(&error)))
        }
        Err(error) => Err(error),
    }
}

/// Message about a wrong answer to a table that must be refused; `None` where the table is refused.
fn refusal(what: &str, answer: Result<Live, PluginError>) -> Option<String> {
    match answer {
        Ok(_) => Some(format!("{what} is taken without an error")),
        Err(error) if is_panic(&error) => Some(format!("{what}: {error}")),
        Err(error) if error.message().trim().is_empty() => {
            Some(format!("{what} is refused without a sentence"))
        }
        Err(_) => None,
    }
}

pub(super) fn empty_config(subject: &Subject<'_>) -> Verdict {
    match subject.create_from("{}") {
        Ok(_) => success("it needs no keys"),
        Err(error) if is_panic(&error) => Err(error),
        Err(error) if error.message().trim().is_empty() => {
            failed("it is refused without a sentence")
        }
        Err(error) => success(format!("it says what is missing: {error}")),
    }
}

pub(super) fn unknown_key(subject: &Subject<'_>) -> Verdict {
    let json = subject.table_with("no-such-key", json!(1));
    match refusal("the key `no-such-key`", subject.create_from(&json)) {
        Some(sentence) => failed(format!("{sentence} (refuse unknown keys)")),
        None => success("it is refused with a sentence"),
    }
}

/// Checks that the component takes the default of each key, and both ends of each range for a
/// search.
pub(super) fn key_docs(subject: &Subject<'_>) -> Verdict {
    let component = subject.image.component(subject.point, subject.id)?;
    let Some(component) = component.filter(|component| !component.keys.is_empty()) else {
        return success("it has no keys");
    };
    if subject.create().is_err() {
        return success("every key is described");
    }
    for key in &component.keys {
        let name = &key.name;
        if let Some(default) = key.default().filter(|default| *default != "null") {
            let value = serde_json::from_str(default).unwrap_or_default();
            if let Some(error) = refused(subject, name, &value) {
                return failed(format!(
                    "the default of key `{name}` is {default}, which it does not take: {error}"
                ));
            }
        }
        let range = key.range.into_option();
        for end in range.iter().flat_map(|range| [range.low, range.high]) {
            let is_whole = range.is_some_and(|range| range.whole);
            let value = if is_whole {
                json!(end as i64)
            } else {
                json!(end)
            };
            if let Some(error) = refused(subject, name, &value) {
                return failed(format!(
                    "the range of key `{name}` ends at {value}, which it does not take: {error} \
                     (narrow the range)"
                ));
            }
        }
    }
    success("it takes each key's default, and both ends of each range")
}

/// The refusal of a key's value. The value is tried beside the table's other keys and alone,
/// because a key of the table may exclude it.
fn refused(subject: &Subject<'_>, key: &str, value: &Value) -> Option<PluginError> {
    let beside = subject.table_with(key, value.clone());
    let error = subject.create_from(&beside).err()?;
    subject
        .create_from(&json!({ key: value }).to_string())
        .err()?;
    Some(error)
}

/// Checks each key with a value whose type no key has.
pub(super) fn wrong_type(subject: &Subject<'_>) -> Verdict {
    if subject.keys.is_empty() {
        return skipped("it has no keys");
    }
    for key in subject.keys {
        let json = subject.table_with(key, json!({ "a": [null, { "b": {} }] }));
        if let Some(sentence) = refusal(
            &format!("a table under `{key}`"),
            subject.create_from(&json),
        ) {
            return failed(sentence);
        }
    }
    success("it is refused with a sentence, under each key")
}

pub(super) fn key_values(subject: &Subject<'_>) -> Verdict {
    let mut taken = 0;
    for (name, json) in subject.guesses() {
        let life = subject.create_from(&json).and_then(|mut instance| {
            taken += 1;
            instance.step(&subject.stream(0)).map(drop)
        });
        if let Some(panic) = life.err().filter(is_panic) {
            return failed(format!(
                "with {name} it {panic} (refuse the value in `validate`)"
            ));
        }
    }
    success(format!(
        "{taken} other values are taken without a panic, the rest is refused"
    ))
}

pub(super) fn malformed_config(subject: &Subject<'_>) -> Verdict {
    for json in ["", "{", "[]", "7", "null", "\u{0}", "{\"a\": 1,}"] {
        if let Some(sentence) = refusal(
            &format!("the text {json:?} for a table"),
            subject.create_from(json),
        ) {
            return failed(sentence);
        }
    }
    success("text that is no table is refused with a sentence")
}
