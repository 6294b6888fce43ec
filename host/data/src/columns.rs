//! The columns of a row, and their values.

use anyhow::{Error, Result, anyhow, bail};
use serde_json::{Map, Number, Value};

use super::chat::python_float;

/// The column names of a dataset. A dotted name `a.b` is field `b` of column `a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Column of the prompt, which is text.
    pub prompt: String,
    /// Column of the answer, text or a number; a row without it uses the whole solution as answer.
    pub answer: String,
    /// Column of the worked solution, text or a number; may be absent.
    pub solution: String,
}

impl Default for Columns {
    /// The names `prompt`, `answer` and `solution`, as in TRL's datasets.
    fn default() -> Self {
        Columns {
            prompt: "prompt".into(),
            answer: "answer".into(),
            solution: "solution".into(),
        }
    }
}

/// The value of a row's column, or of a nested field if the name has dots.
pub(super) fn at<'a>(row: &'a Map<String, Value>, column: &str) -> Option<&'a Value> {
    row.get(column).or_else(|| {
        let (first, rest) = column.split_once('.')?;
        at(row.get(first)?.as_object()?, rest)
    })
}

/// `column` of `row` as text; a missing, null or empty column is `None`.
pub(super) fn text_of(row: &Map<String, Value>, column: &str) -> Result<Option<String>> {
    let text = match at(row, column) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => shown(number),
        Some(other) => bail!(
            "column `{column}` is {}, expected text (write it as one string)",
            kind(other)
        ),
    };
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

/// The error about a needed column whose value is null or empty; `None` if the row has no such
/// column.
pub(super) fn blank(row: &Map<String, Value>, column: &str) -> Option<Error> {
    Some(match at(row, column)? {
        Value::Null => anyhow!("column `{column}` is null (give it a value, or remove the row)"),
        _ => anyhow!("column `{column}` is empty (remove the row or fill it in)"),
    })
}

/// A number as text. Floats are as Python writes them: in the `2.5e-6` of Rust, `e` could be
/// Euler's number.
pub(super) fn shown(number: &Number) -> String {
    number
        .as_f64()
        .filter(|_| number.is_f64())
        .map_or_else(|| number.to_string(), python_float)
}

/// Kind of a value, in words.
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
