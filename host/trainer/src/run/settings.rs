//! Settings of a run as keys and values, and changes between them:
//! `train.learning_rate: 0.0001 -> 0.0002`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::config::default_of;

/// Differences between two settings texts, one entry per key. A setting that a text lacks has its
/// default: a run may be of a version that did not know it, or that did not write empty lists.
pub fn changes(before: &str, now: &str) -> Result<Vec<String>> {
    let (before, now) = (keys(&read(before)?), keys(&read(now)?));
    let all: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let value = |values: &BTreeMap<String, String>, key: &str| {
        let value = values.get(key).cloned().or_else(|| default_of(key));
        value
            .filter(|value| value != "[]")
            .unwrap_or_else(|| "not set".to_owned())
    };
    let values = all
        .into_iter()
        .map(|key| (key, value(&before, key), value(&now, key)));
    let changed = values.filter(|(_, before, now)| before != now);
    Ok(changed
        .map(|(key, before, now)| format!("`{key}`: {before} -> {now}"))
        .collect())
}

/// The settings in `text`.
pub fn read(text: &str) -> Result<Table> {
    text.parse().context("settings are not TOML")
}

/// Every value by its dotted key, in the form of `--set`.
pub fn keys(settings: &Table) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    settings
        .iter()
        .for_each(|(key, value)| collect(key.clone(), value, &mut keys));
    keys
}

fn collect(key: String, value: &Value, keys: &mut BTreeMap<String, String>) {
    let under = |part: &str| {
        if key.is_empty() {
            part.to_owned()
        } else {
            format!("{key}.{part}")
        }
    };
    match value {
        Value::Table(table) => table
            .iter()
            .for_each(|(part, value)| collect(under(part), value, keys)),
        Value::Array(values) if values.iter().any(Value::is_table) => {
            values
                .iter()
                .enumerate()
                .for_each(|(i, value)| collect(under(&i.to_string()), value, keys));
        }
        _ => {
            keys.insert(key, value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_key_by_key() {
        let before = "[train]\nseed = 1\nlr = 1e-4\n[[mask]]\nuse = \"a\"\n[[mask]]\nuse = \"b\"\nrange = [0, 1]\n";
        let now = "[train]\nlr = 0.0001\nseed = 2\n[[mask]]\nuse = \"a\"\nstrict = true\n";
        assert_eq!(changes(before, before).unwrap(), Vec::<String>::new());
        let expected = [
            "`mask.0.strict`: not set -> true",
            "`mask.1.range`: [0, 1] -> not set",
            "`mask.1.use`: \"b\" -> not set",
            "`train.seed`: 1 -> 2",
        ];
        assert_eq!(changes(before, now).unwrap(), expected);
        let of_an_older_version = |now: &str| changes("[train]\nseed = 1\n", now).unwrap();
        assert!(
            of_an_older_version(
                "weight = []\n[train]\nseed = 1\nsave_minutes = 10.0\nloss_factors = []\n"
            )
            .is_empty()
        );
        let changed = of_an_older_version("[train]\nseed = 1\nsave_minutes = 5.0\n");
        assert_eq!(changed, ["`train.save_minutes`: 10.0 -> 5.0"]);
    }

    #[test]
    fn numbers_that_look_alike_are_told_apart() {
        assert_eq!(changes("a = inf", "a = nan").unwrap(), ["`a`: inf -> nan"]);
        assert_eq!(changes("a = 1", "a = 1.0").unwrap(), ["`a`: 1 -> 1.0"]);
        assert!(changes("a = 0.1", "a = 0.10").unwrap().is_empty());
    }
}
