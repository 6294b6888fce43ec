//! One row of a dataset: a JSON object with a prompt and an answer (or a worked solution).

use anyhow::{Error, Result, anyhow, bail};
use serde_json::{Map, Value};

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

/// Reads examples in lines of a dataset.
#[derive(Clone, Copy)]
pub(super) struct Parser<'a> {
    pub(super) reading: &'a Reading,
    /// The template that formats prompts, each a conversation or one message; `None` if prompts are
    /// plain text.
    pub(super) chat: Option<&'a Chat>,
    /// True if the solution is learned.
    pub(super) teaches: bool,
}

impl Parser<'_> {
    /// The example in a line from `place`; `None` for a row that the filter leaves out.
    ///
    /// Errors name the column.
    pub(super) fn parse(&self, line: &[u8], place: Row) -> Result<Option<Example>> {
        let reading = self.reading;
        let line = line.strip_prefix(BYTE_ORDER).unwrap_or(line);
        let value: Value =
            lenient::parse(line).map_err(|error| anyhow!("not valid JSON: {error}"))?;
        let Value::Object(row) = value else {
            bail!("expected a JSON object, found {}", kind(&value));
        };
        let mut fields = Fields {
            present: names(&row),
            row,
        };
        if !reading.filter.takes(&fields.row)? {
            return Ok(None);
        }
        if let Some(preset) = reading.preset {
            preset
                .apply(&mut fields.row)
                .map_err(|error| anyhow!("{error} ({})", fields.columns()))?;
        }
        let prompt = self.prompt(line, &fields)?;
        let solved = self.solved(&fields)?;
        fields.row.remove(&reading.columns.prompt);
        let template = reading.template.as_deref();
        if template.is_some() && matches!(prompt, Prompt::Conversation(_)) {
            bail!(
                "its prompt is a list of messages, which `prompt_template` cannot be put around \
                 (remove it)"
            );
        }
        let text = match &prompt {
            Prompt::Text(text) => text.as_str(),
            Prompt::Conversation(_) => "",
        };
        let template = template.or_else(|| reading.preset?.template());
        let example = Example {
            prompt: template.map_or_else(|| text.to_owned(), |it| it.replace(PROMPT, text)),
            answer: solved.answer,
            solution: solved.solution,
            reply: None,
            columns: Value::Object(fields.row).to_string(),
            row: Some(place),
        };
        match (self.chat, &prompt) {
            (Some(chat), Prompt::Conversation(messages)) => example.of_messages(chat, messages),
            (chat, _) => example.in_chat(chat),
        }
        .map(Some)
    }

    /// The prompt of a row.
    fn prompt(&self, line: &[u8], fields: &Fields) -> Result<Prompt> {
        let column = &self.reading.columns.prompt;
        match (self.chat, at(&fields.row, column)) {
            (Some(_), Some(Value::Array(_))) => {
                Ok(Prompt::Conversation(Messages::in_row(line, column)?))
            }
            (None, Some(Value::Array(list))) if list.first().is_some_and(Value::is_object) => {
                bail!("column `{column}` is a list of messages (set `data.format` to `chat`)")
            }
            _ => match text_of(&fields.row, column)? {
                Some(text) => Ok(Prompt::Text(text)),
                None => Err(fields.missing("prompt_column", column)),
            },
        }
    }

    /// The answer and the solution of a row. What nobody reads may be anything: an answer if no
    /// reward compares it, and a solution beside an answer.
    fn solved(&self, fields: &Fields) -> Result<Solved> {
        let columns = &self.reading.columns;
        let needs_answer = !self.reading.answer_is_unread;
        let answer = fields.text(&columns.answer, needs_answer)?;
        let needs_solution = self.teaches || (answer.is_none() && needs_answer);
        let solution = fields.text(&columns.solution, needs_solution)?;
        let answer = match answer.or_else(|| solution.clone()) {
            Some(answer) => answer,
            None if needs_answer => {
                return Err(fields.missing("answer_column", &columns.answer));
            }
            None => String::new(),
        };
        Ok(Solved { answer, solution })
    }
}

/// The prompt of a row.
enum Prompt {
    Text(String),
    Conversation(Messages),
}

/// The answer of a row, and its worked solution if it has one.
struct Solved {
    answer: String,
    solution: Option<String>,
}

/// A row with the names of the columns that it had in its file.
struct Fields {
    row: Map<String, Value>,
    present: Vec<String>,
}

impl Fields {
    /// The columns of the row, for an error message.
    fn columns(&self) -> String {
        format!("columns of this row: {}", self.present.join(", "))
    }

    /// The error about a column that is needed; `key` is the setting that names it.
    fn missing(&self, key: &str, column: &str) -> Error {
        blank(&self.row, column).unwrap_or_else(|| {
            anyhow!(
                "no column `{column}` ({}; name one with `data.{key}`)",
                self.columns()
            )
        })
    }

    /// Text of a column. If it is not needed, a value that is not text is none.
    fn text(&self, column: &str, is_needed: bool) -> Result<Option<String>> {
        let text = text_of(&self.row, column);
        if is_needed {
            text
        } else {
            Ok(text.unwrap_or_default())
        }
    }
}

/// The names of the first columns of a row, for an error message.
fn names(row: &Map<String, Value>) -> Vec<String> {
    row.keys()
        .take(MOST_NAMES)
        .map(|key| format!("`{}`", quote(key)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::files::Unit;
    use super::*;

    fn read(text: &str, reading: &Reading) -> Result<Option<Example>> {
        let parser = Parser {
            reading,
            chat: None,
            teaches: false,
        };
        parser.parse(
            text.as_bytes(),
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
        let parser = Parser {
            reading: &Reading::default(),
            chat: None,
            teaches: true,
        };
        let error = parser.parse(row, place).unwrap_err().to_string();
        assert_eq!(
            error,
            "column `solution` is a list, expected text (write it as one string)"
        );
    }

    #[test]
    fn suggests_chat_for_messages_in_a_nested_column() {
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
    fn puts_a_template_around_the_prompt() {
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
    fn returns_none_for_filtered_rows() {
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
