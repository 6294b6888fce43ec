//! Settings of a run as keys and values, and changes between them:
//! `train.learning_rate: 0.0001 -> 0.0002`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::config::default_of;

/// Differences between two settings texts, one entry per key. A setting that a text lacks has its
/// default: the run may come from a version that did not know it, or that left out empty lists.
pub fn changes(before: &str, now: &str) -> Result<Vec<String>> {
    let before = keys(&read(before)?);
    let now = keys(&read(now)?);
    let all: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let mut changes = Vec::new();
    for key in all {
        let before = value_or_default(&before, key);
        let now = value_or_default(&now, key);
        if before != now {
            changes.push(format!("`{key}`: {before} -> {now}"));
        }
    }
    Ok(changes)
}

/// The value of `key` in words.
fn value_or_default(values: &BTreeMap<String, String>, key: &str) -> String {
    let value = values.get(key).cloned().or_else(|| default_of(key));
    value
        .filter(|value| value != "[]")
        .unwrap_or_else(|| "not set".to_owned())
}

/// The settings in `text`.
pub fn read(text: &str) -> Result<Table> {
    text.parse().context("settings are not TOML")
}

/// Every value by its dotted key, in the form of `--set`.
pub fn keys(settings: &Table) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    for (key, value) in settings {
        collect(key.clone(), value, &mut keys);
    }
    keys
}

fn collect(key: String, value: &Value, keys: &mut BTreeMap<String, String>) {
    match value {
        Value::Table(table) => {
            for (part, value) in table {
                collect(format!("{key}.{part}"), value, keys);
            }
        }
        Value::Array(values) if values.iter().any(Value::is_table) => {
            for (i, value) in values.iter().enumerate() {
                collect(format!("{key}.{i}"), value, keys);
            }
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
    fn names_each_changed_key() {
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
    fn tells_similar_numbers_apart() {
        assert_eq!(changes("a = inf", "a = nan").unwrap(), ["`a`: inf -> nan"]);
        assert_eq!(changes("a = 1", "a = 1.0").unwrap(), ["`a`: 1 -> 1.0"]);
        assert!(changes("a = 0.1", "a = 0.10").unwrap().is_empty());
    }
}
