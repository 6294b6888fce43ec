//! Checks of how a component reads its table.

use serde_json::json;

use super::outcome::{Outcome, Verdict, failed, skipped, success};
use super::subject::{Live, Subject, is_panic};
use crate::wire::{ComponentInfo, KeyDoc};
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
        Some(sentence) => failed(format!(
            "{sentence} (derive `Deserialize` on a plain struct)"
        )),
        None => success("it is refused with a sentence"),
    }
}

pub(super) fn key_docs(subject: &Subject<'_>) -> Verdict {
    let component = subject.image.component(subject.point, subject.id)?;
    let described = component
        .as_ref()
        .map_or(Ok(()), ComponentInfo::check_key_docs);
    let docs = component
        .map(|component| component.key_docs.into_vec())
        .unwrap_or_default();
    if let Some(sentence) = described.err().or_else(|| refused_end(subject, &docs)) {
        return failed(sentence);
    }
    success(if !docs.is_empty() || subject.keys.is_empty() {
        "every key is described"
    } else {
        "no key is described (`register!` takes a list, for `host plugins --verbose`)"
    })
}

/// Message about an end of a key's range that the component refuses although it accepts its table.
/// The end is tried beside the table's other keys and alone, because a key of the table may exclude
/// it.
fn refused_end(subject: &Subject<'_>, docs: &[KeyDoc]) -> Option<String> {
    subject.create().ok()?;
    let ranges = docs
        .iter()
        .filter_map(|doc| Some((doc.name.as_str(), doc.range.into_option()?)));
    let ends =
        ranges.flat_map(|(key, range)| [range.low, range.high].map(|end| (key, range.whole, end)));
    ends.into_iter().find_map(|(key, whole, end)| {
        let value = if whole { json!(end as i64) } else { json!(end) };
        let error = subject.create_from(&subject.table_with(key, value.clone())).err()?;
        subject.create_from(&json!({ key: value }).to_string()).err()?;
        Some(format!("the range of key `{key}` ends at {value}, which it does not take: {error} (narrow the range)"))
    })
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
