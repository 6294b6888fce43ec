//! One row of a JSONL file: a JSON object with a prompt and an answer (or a worked solution).

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::{Map, Value};

use super::quote::quote;
use super::{Chat, Example, Messages, Row};

/// Most columns that a sentence names.
const MOST_NAMES: usize = 20;

/// The column names of a JSONL dataset.
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

/// The example in a line, which was read at `place`; with a `chat`, its prompt is a conversation or one message of it.
///
/// Errors name the column.
pub(super) fn parse(line: &[u8], columns: &Columns, chat: Option<&Chat>, place: Row) -> Result<Example> {
    let value: Value = serde_json::from_slice(line).map_err(|error| anyhow!("not valid JSON: {error}"))?;
    let Value::Object(mut row) = value else {
        bail!("expected a JSON object, found {}", kind(&value));
    };
    let present: Vec<String> = row.keys().take(MOST_NAMES).map(|key| format!("`{}`", quote(key))).collect();
    let missing = |column: &str| anyhow!("no column `{column}` (columns of this row: {})", present.join(", "));

    let (prompt, messages) = match (chat, row.get(&columns.prompt)) {
        (Some(_), Some(Value::Array(_))) => (String::new(), Some(Messages::in_row(line, &columns.prompt)?)),
        _ => (text(&row, &columns.prompt)?.ok_or_else(|| missing(&columns.prompt))?, None),
    };
    row.remove(&columns.prompt);
    let solution = text(&row, &columns.solution)?;
    let answer = match text(&row, &columns.answer)? {
        Some(answer) => answer,
        None => solution.clone().ok_or_else(|| missing(&columns.answer))?,
    };
    let columns = Value::Object(row).to_string();
    let example = Example { prompt, answer, solution, reply: None, columns, row: Some(place) };
    match (chat, messages) {
        (Some(chat), Some(messages)) => example.of_messages(chat, &messages),
        _ => example.in_chat(chat),
    }
}

/// `column` of `row` as text; a missing or null column is `None`, an empty one an error.
fn text(row: &Map<String, Value>, column: &str) -> Result<Option<String>> {
    let text = match row.get(column) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(other) => bail!("column `{column}` is {}, expected text (write it as one string)", kind(other)),
    };
    ensure!(!text.trim().is_empty(), "column `{column}` is empty (remove the row or fill it in)");
    Ok(Some(text))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(text: &str, columns: &Columns) -> Example {
        parse(text.as_bytes(), columns, None, Row { file: "rows.jsonl".into(), line: 1 }).unwrap()
    }

    #[test]
    fn rows_become_examples() {
        let text = "\n{\"prompt\": \"1+1=\", \"answer\": 2, \"level\": \"easy\"}\r\n";
        let example = example(text, &Columns::default());
        assert_eq!((example.prompt.as_str(), example.answer.as_str()), ("1+1=", "2"));
        assert_eq!(example.solution, None);
        assert_eq!(example.columns, r#"{"answer":2,"level":"easy"}"#);
    }

    #[test]
    fn a_solution_stands_in_for_a_missing_answer() {
        let example = example("{\"prompt\": \"p\", \"solution\": \"s=4\"}", &Columns::default());
        assert_eq!((example.answer.as_str(), example.solution.as_deref()), ("s=4", Some("s=4")));
    }

    #[test]
    fn columns_can_be_renamed_and_shared() {
        let columns = Columns { prompt: "q".into(), answer: "a".into(), solution: "a".into() };
        let example = example("{\"q\": \"p\", \"a\": \"s=4\", \"answer\": \"other\"}", &columns);
        assert_eq!((example.answer.as_str(), example.target()), ("s=4", "s=4"));
        assert_eq!(example.columns, r#"{"a":"s=4","answer":"other"}"#);
    }
}
