//! The columns of a row, and what is in them.

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value};

/// The column names of a dataset; with dots, `a.b` is what column `a` has under `b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The prompt, text.
    pub prompt: String,
    /// The answer, text or a number; where a row lacks it, the whole solution is the answer.
    pub answer: String,
    /// The worked solution, text or a number; may be absent.
    pub solution: String,
}

impl Default for Columns {
    /// `prompt`, `answer` and `solution`, as in TRL's datasets.
    fn default() -> Self {
        Columns { prompt: "prompt".into(), answer: "answer".into(), solution: "solution".into() }
    }
}

/// The value of a column of a row, or of a nested field, with dots between the names.
pub(super) fn at<'a>(row: &'a Map<String, Value>, column: &str) -> Option<&'a Value> {
    row.get(column).or_else(|| {
        let (first, rest) = column.split_once('.')?;
        at(row.get(first)?.as_object()?, rest)
    })
}

/// `column` of `row` as text; a missing or null column is `None`, an empty one an error.
pub(super) fn text_of(row: &Map<String, Value>, column: &str) -> Result<Option<String>> {
    let text = match at(row, column) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(other) => bail!("column `{column}` is {}, expected text (write it as one string)", kind(other)),
    };
    ensure!(!text.trim().is_empty(), "column `{column}` is empty (remove the row or fill it in)");
    Ok(Some(text))
}

/// The kind of a value, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
