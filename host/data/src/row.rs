//! One row of a dataset: a JSON object with a prompt and an answer (or a worked solution).

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use super::columns::{Columns, at, blank, kind, text_of};
use super::filter::Filter;
use super::lenient::{self, BYTE_ORDER};
use super::preset::Preset;
use super::quote::quote;
use super::{Chat, Example, Messages, Row};

/// Largest number of columns that a message names.
const MOST_NAMES: usize = 20;

/// Placeholder of the prompt in a template.
pub const PROMPT: &str = "{prompt}";

/// Rules for reading the rows of a dataset.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Names of the columns.
    pub columns: Columns,
    /// Layout of a well-known dataset, whose rows are converted to those columns.
    pub preset: Option<Preset>,
    /// Text around each prompt, with [`PROMPT`] in its place; `None` uses the preset's.
    pub template: Option<String>,
    /// Rows to use.
    pub filter: Filter,
    /// True if a row may lack its answer.
    pub answer_is_unread: bool,
}

/// Parses the example in a line from `place`. With a `chat`, the prompt is a conversation or one
/// message. `teaches` says that the solution is learned. Returns `None` for a row that the filter
/// leaves out.
///
/// Errors name the column.
pub(super) fn parse(
    line: &[u8],
    reading: &Reading,
    (chat, teaches): (Option<&Chat>, bool),
    place: Row,
) -> Result<Option<Example>> {
    let line = line.strip_prefix(BYTE_ORDER).unwrap_or(line);
    let value: Value = lenient::parse(line).map_err(|error| anyhow!("not valid JSON: {error}"))?;
    let Value::Object(mut row) = value else {
        bail!("expected a JSON object, found {}", kind(&value));
    };
    let present: Vec<String> = row
        .keys()
        .take(MOST_NAMES)
        .map(|key| format!("`{}`", quote(key)))
        .collect();
    let columns_of_row = || format!("columns of this row: {}", present.join(", "));
    if !reading.filter.takes(&row)? {
        return Ok(None);
    }
    if let Some(preset) = reading.preset {
        preset
            .apply(&mut row)
            .map_err(|error| anyhow!("{error} ({})", columns_of_row()))?;
    }
    let missing = |key: &str, column: &str| {
        let absent = || {
            anyhow!(
                "no column `{column}` ({}; name one with `data.{key}`)",
                columns_of_row()
            )
        };
        blank(&row, column).unwrap_or_else(absent)
    };
    let columns = &reading.columns;

    let (prompt, messages) = match (chat, at(&row, &columns.prompt)) {
        (Some(_), Some(Value::Array(_))) => (
            String::new(),
            Some(Messages::in_row(line, &columns.prompt)?),
        ),
        (None, Some(Value::Array(list))) if list.first().is_some_and(Value::is_object) => {
            bail!(
                "column `{}` is a list of messages (set `data.format` to `chat`)",
                columns.prompt
            )
        }
        _ => (
            text_of(&row, &columns.prompt)?
                .ok_or_else(|| missing("prompt_column", &columns.prompt))?,
            None,
        ),
    };
    // What nobody reads may be anything: an answer if no reward compares it, and a solution beside
    // an answer.
    let text = |column: &str, is_read: bool| {
        if is_read {
            text_of(&row, column)
        } else {
            Ok(text_of(&row, column).unwrap_or_default())
        }
    };
    let answer = text(&columns.answer, !reading.answer_is_unread)?;
    let solution = text(
        &columns.solution,
        teaches || (answer.is_none() && !reading.answer_is_unread),
    )?;
    let answer = match answer.or_else(|| solution.clone()) {
        None if reading.answer_is_unread => String::new(),
        answer => answer.ok_or_else(|| missing("answer_column", &columns.answer))?,
    };
    row.remove(&columns.prompt);
    let columns = Value::Object(row).to_string();
    let template = reading.template.as_deref();
    if let (Some(_), Some(_)) = (&messages, template) {
        bail!(
            "its prompt is a list of messages, which `prompt_template` cannot be put around (remove it)"
        );
    }
    let prompt = match template.or_else(|| reading.preset?.template()) {
        Some(template) => template.replace(PROMPT, &prompt),
        None => prompt,
    };
    let example = Example {
        prompt,
        answer,
        solution,
        reply: None,
        columns,
        row: Some(place),
    };
    match (chat, messages) {
        (Some(chat), Some(messages)) => example.of_messages(chat, &messages),
        _ => example.in_chat(chat),
    }
    .map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::files::Unit;
    use super::*;

    fn read(text: &str, reading: &Reading) -> Result<Option<Example>> {
        parse(
            text.as_bytes(),
            reading,
            (None, false),
            Row {
                file: "rows.jsonl".into(),
                unit: Unit::Line,
                number: 1,
            },
        )
    }

    #[test]
    fn rows_become_examples() {
        let shared = Columns {
            prompt: "q".into(),
            answer: "a".into(),
            solution: "a".into(),
        };
        let nested = Columns {
            answer: "reward_model.ground_truth".into(),
            ..Columns::default()
        };
        // A solution stands in for a missing answer, columns can be renamed and shared, and dots
        // lead into columns. Numbers keep all digits.
        let long = r#"{"prompt": "p", "answer": 123456789012345678901234567890, "x": NaN}"#;
        let kept = r#"{"answer":"123456789012345678901234567890","x":null}"#;
        let in_column = r#"{"reward_model":{"ground_truth":"4"}}"#;
        for (columns, text, answer, solution, others) in [
            (
                None,
                "\n{\"prompt\": \"p\", \"answer\": 2, \"level\": 1}\r\n",
                "2",
                None,
                r#"{"answer":2,"level":1}"#,
            ),
            (None, long, "123456789012345678901234567890", None, kept),
            (
                None,
                r#"{"prompt": "p", "solution": "s=4"}"#,
                "s=4",
                Some("s=4"),
                r#"{"solution":"s=4"}"#,
            ),
            (
                Some(shared),
                r#"{"q": "p", "a": "s=4", "answer": "b"}"#,
                "s=4",
                Some("s=4"),
                r#"{"a":"s=4","answer":"b"}"#,
            ),
            (
                Some(nested),
                r#"{"prompt": "p", "reward_model": {"ground_truth": "4"}}"#,
                "4",
                None,
                in_column,
            ),
            // Empty text is none, and a solution beside an answer is not read.
            (
                None,
                r#"{"prompt": "p", "answer": " ", "solution": "s=4"}"#,
                "s=4",
                Some("s=4"),
                r#"{"answer":" ","solution":"s=4"}"#,
            ),
            (
                None,
                r#"{"prompt": "p", "answer": "4", "solution": ""}"#,
                "4",
                None,
                r#"{"answer":"4","solution":""}"#,
            ),
            (
                None,
                r#"{"prompt": "p", "answer": "4", "solution": [1]}"#,
                "4",
                None,
                r#"{"answer":"4","solution":[1]}"#,
            ),
        ] {
            let reading = Reading {
                columns: columns.unwrap_or_default(),
                ..Reading::default()
            };
            let example = read(text, &reading).unwrap().unwrap();
            assert_eq!(
                (example.prompt.as_str(), example.answer.as_str()),
                ("p", answer)
            );
            assert_eq!(
                (example.solution.as_deref(), example.columns.as_str()),
                (solution, others)
            );
        }
    }

    #[test]
    fn a_solution_that_is_learned_is_text() {
        let place = Row {
            file: "rows.jsonl".into(),
            unit: Unit::Line,
            number: 1,
        };
        let row = br#"{"prompt": "p", "answer": "4", "solution": [1]}"#;
        let error = parse(row, &Reading::default(), (None, true), place)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "column `solution` is a list, expected text (write it as one string)"
        );
    }

    #[test]
    fn messages_in_a_nested_column_are_told_and_an_answer_may_be_the_prompt() {
        let row = r#"{"extra": {"messages": [{"role": "user", "content": "p"}]}, "p": "same"}"#;
        let columns = |prompt: &str| Columns {
            prompt: prompt.into(),
            answer: "p".into(),
            ..Columns::default()
        };
        let read = |prompt| {
            read(
                row,
                &Reading {
                    columns: columns(prompt),
                    ..Reading::default()
                },
            )
        };
        let sentence = read("extra.messages").unwrap_err().to_string();
        assert_eq!(
            sentence,
            "column `extra.messages` is a list of messages (set `data.format` to `chat`)"
        );
        assert_eq!(read("p").unwrap().unwrap().answer, "same");
    }

    #[test]
    fn a_template_stands_around_the_prompt_and_the_preset_has_one() {
        let row = r#"{"question": "1+1?", "answer": "it is\n#### 2"}"#;
        let prompt = |template: Option<&str>| {
            let template = template.map(str::to_owned);
            read(
                row,
                &Reading {
                    preset: Some(Preset::Gsm8k),
                    template,
                    ..Reading::default()
                },
            )
            .unwrap()
            .unwrap()
            .prompt
        };
        assert_eq!(prompt(Some("{prompt} = ")), "1+1? = ");
        assert_eq!(
            prompt(None),
            "1+1? Let's think step by step and output the final answer after \"####\"."
        );
    }

    #[test]
    fn rows_that_a_filter_leaves_out_are_none() {
        let filter: Filter = toml::from_str("level = 2").unwrap();
        let reading = Reading {
            filter,
            ..Reading::default()
        };
        assert!(
            read(r#"{"prompt": "p", "answer": "a", "level": 2}"#, &reading)
                .unwrap()
                .is_some()
        );
        assert!(read(r#"{"level": 3}"#, &reading).unwrap().is_none());
    }
}
