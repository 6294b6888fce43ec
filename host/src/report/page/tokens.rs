//! Data of a page's token view: a few completions of each run, with the known values of their
//! tokens.

use std::collections::BTreeMap;

use capo_system::terminal;
use serde_json::{Map, Value, json};

use super::series::short;
use crate::report::found::{FoundRun, Row, completions};

/// Number of steps of a run, and number of completions of a step, that are shown.
const STEPS: usize = 4;
const OF_A_STEP: usize = 8;
/// Largest count of numbers in all completions of a page together.
const NUMBERS: usize = 200_000;
/// Token columns that are not shown as numbers.
const OTHERS: [&str; 5] = ["id", "text", "token_mask", "rejected_by", "observed"];
const TOKENS: &str = "tokens/";

/// The completions, and messages about files that cannot be read.
pub fn data(runs: &[FoundRun]) -> (Value, Vec<String>) {
    let mut shown = Vec::new();
    let mut remarks = Vec::new();
    // Each run gets an equal share of the page's numbers.
    let most = NUMBERS / runs.len().max(1);
    for (number, run) in runs.iter().enumerate() {
        match completions(&run.dir, STEPS) {
            Ok(found) => shown.extend(of_run(number, found, most)),
            Err(error) => remarks.push(format!("{}: {error:#}", run.name)),
        }
    }
    (Value::Array(shown), remarks)
}

/// The completions of a run, within `most` numbers. In each step, those with the most rejected
/// tokens come first.
fn of_run(run: usize, found: BTreeMap<u64, Vec<Row>>, most: usize) -> Vec<Value> {
    let mut shown = Vec::new();
    let mut left = most;
    for (step, mut rows) in found {
        rows.sort_by_key(|row| std::cmp::Reverse(rejected(row)));
        for row in rows.iter().take(OF_A_STEP) {
            let completion = completion(run, step, row);
            let numbers = size(row);
            // A completion that is too long does not exclude shorter ones.
            if numbers <= left {
                left -= numbers;
                shown.push(completion);
            }
        }
    }
    shown
}

fn list<'a>(row: &'a Row, name: &str) -> &'a [Value] {
    row.get(&format!("{TOKENS}{name}"))
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn rejected(row: &Row) -> usize {
    let observed = list(row, "observed");
    list(row, "token_mask")
        .iter()
        .enumerate()
        .filter(|(at, kept)| kept.as_u64() == Some(0) && observed.get(*at) != Some(&1.into()))
        .count()
}

fn size(row: &Row) -> usize {
    row.values()
        .filter_map(Value::as_array)
        .map(Vec::len)
        .sum::<usize>()
        + 20
}

/// A text with its control characters made visible.
fn text(value: Option<&Value>) -> Value {
    let text = value.and_then(Value::as_str).unwrap_or_default();
    terminal::escape(text).into()
}

/// The texts of a list; a null stays null.
fn texts(row: &Row, name: &str) -> Vec<Value> {
    list(row, name)
        .iter()
        .map(|value| match value {
            Value::Null => Value::Null,
            value => text(Some(value)),
        })
        .collect()
}

fn number(value: &Value) -> Value {
    short(value.as_f64().unwrap_or(f64::NAN))
}

fn completion(run: usize, step: u64, row: &Row) -> Value {
    let parts = row.iter().filter_map(|(name, value)| {
        Some((name.strip_prefix("rewards/")?.to_owned(), number(value)))
    });
    let columns = row.iter().filter_map(|(name, values)| {
        let name = name
            .strip_prefix(TOKENS)
            .filter(|name| !OTHERS.contains(name))?;
        Some((
            name.to_owned(),
            values.as_array()?.iter().map(number).collect(),
        ))
    });
    json!({
        "run": run,
        "step": step,
        "prompt": text(row.get("prompt")),
        "completion": text(row.get("completion")),
        "answer": text(row.get("answer")),
        "reward": row.get("reward").map_or(Value::Null, number),
        "parts": parts.collect::<Map<String, Value>>(),
        "truncated": row.get("truncated") == Some(&Value::Bool(true)),
        "ids": list(row, "id"),
        "texts": texts(row, "text"),
        "rejectedBy": texts(row, "rejected_by"),
        "token_mask": list(row, "token_mask"),
        "observed": list(row, "observed"),
        "numbers": columns.collect::<Map<String, Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(token_mask: &[u64], text: &str) -> Row {
        let row = json!({ "step": 1, "prompt": text, "reward": 0.123456, "rewards/a": 1, "tokens/token_mask": token_mask,
            "tokens/text": [text, null], "tokens/m_f": [1.5, null] });
        row.as_object().unwrap().clone()
    }

    #[test]
    fn rejected_rows_come_first_and_control_characters_are_visible() {
        let rows = vec![row(&[1, 1], "kept"), row(&[0, 1], "out\u{202e}")];
        let shown = of_run(3, BTreeMap::from([(7, rows)]), 1000);
        assert_eq!(shown.len(), 2);
        let first = &shown[0];
        assert_eq!(first["prompt"], "out\\u202e");
        assert_eq!(first["texts"], json!(["out\\u202e", null]));
        assert_eq!(
            [&first["run"], &first["step"], &first["reward"]],
            [&json!(3), &json!(7), &json!(0.12346)]
        );
        assert_eq!(first["numbers"], json!({ "m_f": [1.5, null] }));
        assert_eq!(first["parts"], json!({ "a": 1 }));
    }

    #[test]
    fn tokens_of_an_environment_do_not_count_as_rejected() {
        let mut played = row(&[0, 0, 1], "played");
        played.insert("tokens/observed".into(), json!([1, 1, 0]));
        assert_eq!(rejected(&played), 0);
        let shown = of_run(
            0,
            BTreeMap::from([(1, vec![played, row(&[0], "rejected")])]),
            1000,
        );
        assert_eq!(
            [&shown[0]["prompt"], &shown[1]["observed"]],
            [&json!("rejected"), &json!([1, 1, 0])]
        );
    }

    #[test]
    fn a_page_stays_small() {
        let rows = vec![row(&[1; 500], "long"), row(&[1; 3], "short")];
        let shown = of_run(0, BTreeMap::from([(1, rows)]), 100);
        assert_eq!(
            shown.iter().map(|one| &one["prompt"]).collect::<Vec<_>>(),
            ["short"]
        );
    }
}
