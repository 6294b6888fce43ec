//! Prompts from JSONL files: one JSON object per line, with a prompt and an answer (or a worked solution).

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_loader::files;
use serde_json::{Map, Value};

use super::{Example, ensure_available};
use crate::rng;

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

/// The rows of a training file and of an optional file of held-out prompts, in memory.
#[derive(Clone, Debug)]
pub struct Jsonl {
    name: String,
    train: Vec<Example>,
    eval: Option<(String, Vec<Example>)>,
    seed: u64,
    /// The epoch whose order is at hand, and that order.
    order: (u64, Vec<usize>),
}

impl Jsonl {
    /// Reads both files whole; every row is checked now, so that no run stops at a bad row later.
    ///
    /// Errors name the file, the line and the column.
    pub fn open(train: &Path, eval: Option<&Path>, columns: &Columns, seed: u64) -> Result<Self> {
        let rows = read(train, columns)?;
        let eval = eval.map(|path| anyhow::Ok((path.display().to_string(), read(path, columns)?))).transpose()?;
        let order = (0, epoch_order(seed, 0, rows.len()));
        Ok(Jsonl { name: train.display().to_string(), train: rows, eval, seed, order })
    }

    /// The prompt at `cursor`: each epoch passes once over all rows in its own random order.
    pub fn train(&mut self, cursor: u64) -> Example {
        let rows = self.train.len() as u64;
        let epoch = cursor / rows;
        if self.order.0 != epoch {
            self.order = (epoch, epoch_order(self.seed, epoch, self.train.len()));
        }
        self.train[self.order.1[(cursor % rows) as usize]].clone()
    }

    /// The first `count` rows of the eval file; no eval file, or fewer rows, is an error.
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        let Some((name, rows)) = &self.eval else {
            bail!(
                "dataset `{}` has no held-out prompts (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)",
                self.name
            );
        };
        ensure_available(&format!("`{name}`"), rows.len(), count)?;
        Ok(rows[..count].to_vec())
    }
}

fn epoch_order(seed: u64, epoch: u64, rows: usize) -> Vec<usize> {
    rng::permutation(&mut rng::stream(seed, "data.order", &[epoch]), rows)
}

/// The rows of a file with the usual column names, in order.
///
/// Errors name the file, the line and the column.
pub fn rows(path: &Path) -> Result<Vec<Example>> {
    read(path, &Columns::default())
}

fn read(path: &Path, columns: &Columns) -> Result<Vec<Example>> {
    let bytes = files::read(path)?;
    let mut rows = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if !line.trim_ascii().is_empty() {
            let row = parse(line, columns);
            rows.push(row.with_context(|| format!("bad row at line {} of `{}`", index + 1, path.display()))?);
        }
    }
    ensure!(!rows.is_empty(), "`{}` holds no rows (expected one JSON object per line)", path.display());
    Ok(rows)
}

fn parse(line: &[u8], columns: &Columns) -> Result<Example> {
    let value: Value = serde_json::from_slice(line).map_err(|error| anyhow!("not valid JSON: {error}"))?;
    let Value::Object(mut row) = value else {
        bail!("expected a JSON object, found {}", kind(&value));
    };
    let present: Vec<String> = row.keys().map(|key| format!("`{key}`")).collect();
    let missing = |column: &str| anyhow!("no column `{column}` (columns of this row: {})", present.join(", "));

    let prompt = text(&row, &columns.prompt)?.ok_or_else(|| missing(&columns.prompt))?;
    row.remove(&columns.prompt);
    let solution = text(&row, &columns.solution)?;
    let answer = match text(&row, &columns.answer)? {
        Some(answer) => answer,
        None => solution.clone().ok_or_else(|| missing(&columns.answer))?,
    };
    Ok(Example { prompt, answer, solution, columns: Value::Object(row).to_string() })
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

    fn open(text: &str, columns: &Columns) -> Result<Jsonl> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        Jsonl::open(&path, None, columns, 3)
    }

    /// The whole error chain with the directory removed.
    fn error(text: &str) -> String {
        let error = format!("{:#}", open(text, &Columns::default()).unwrap_err());
        let (before, after) = error.split_once('`').unwrap();
        format!("{before}`{}", &after[after.find("rows.jsonl").unwrap()..])
    }

    #[test]
    fn rows_become_examples() {
        let text = "\n{\"prompt\": \"1+1=\", \"answer\": 2, \"level\": \"easy\"}\r\n";
        let example = open(text, &Columns::default()).unwrap().train(0);
        assert_eq!((example.prompt.as_str(), example.answer.as_str()), ("1+1=", "2"));
        assert_eq!(example.solution, None);
        assert_eq!(example.columns, r#"{"answer":2,"level":"easy"}"#);
    }

    #[test]
    fn a_solution_stands_in_for_a_missing_answer() {
        let example = open("{\"prompt\": \"p\", \"solution\": \"s=4\"}", &Columns::default()).unwrap().train(0);
        assert_eq!((example.answer.as_str(), example.solution.as_deref()), ("s=4", Some("s=4")));
    }

    #[test]
    fn columns_can_be_renamed_and_shared() {
        let columns = Columns { prompt: "q".into(), answer: "a".into(), solution: "a".into() };
        let example = open("{\"q\": \"p\", \"a\": \"s=4\", \"answer\": \"other\"}", &columns).unwrap().train(0);
        assert_eq!((example.answer.as_str(), example.target()), ("s=4", "s=4"));
        assert_eq!(example.columns, r#"{"a":"s=4","answer":"other"}"#);
    }

    #[test]
    fn bad_rows_are_named_by_line() {
        let good = "{\"prompt\": \"p\", \"answer\": \"a\"}\n\n";
        for (row, expected) in [
            ("{\"prompt\": \"p\"}", "no column `answer` (columns of this row: `prompt`)"),
            ("{\"promt\": 1, \"answer\": 2}", "no column `prompt` (columns of this row: `answer`, `promt`)"),
            ("[1]", "expected a JSON object, found a list"),
            ("{\"prompt\": [\"p\"]}", "column `prompt` is a list, expected text (write it as one string)"),
            ("{\"prompt\": \" \"}", "column `prompt` is empty (remove the row or fill it in)"),
            ("{\"prompt\": ", "not valid JSON: EOF while parsing a value at line 1 column 11"),
        ] {
            assert_eq!(error(&format!("{good}{row}")), format!("bad row at line 3 of `rows.jsonl`: {expected}"));
        }
        let columns = Columns::default();
        let broken = Jsonl::open(Path::new("absent.jsonl"), None, &columns, 0).unwrap_err().to_string();
        assert_eq!(broken, "cannot read `absent.jsonl`");
    }

    #[test]
    fn a_file_without_rows_is_an_error() {
        assert_eq!(error("\n \n"), "`rows.jsonl` holds no rows (expected one JSON object per line)");
    }

    #[test]
    fn every_epoch_passes_once_over_all_rows_in_a_new_order() {
        let text: String = (0..20).map(|row| format!("{{\"prompt\": \"p{row}\", \"answer\": {row}}}\n")).collect();
        let mut rows = open(&text, &Columns::default()).unwrap();
        let mut epoch = |start: u64| (start..start + 20).map(|cursor| rows.train(cursor).answer).collect::<Vec<_>>();
        let (first, second) = (epoch(0), epoch(20));
        assert_ne!(first, second);
        assert_eq!(first, epoch(0), "going back must give the same order");
        for order in [first, second] {
            let distinct: std::collections::BTreeSet<_> = order.into_iter().collect();
            assert_eq!(distinct.len(), 20);
        }
        let far = rows.train(20_000_007);
        assert_eq!(far, open(&text, &Columns::default()).unwrap().train(20_000_007));
    }

    #[test]
    fn held_out_rows_come_from_the_eval_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (train, eval) = (directory.path().join("train.jsonl"), directory.path().join("eval.jsonl"));
        std::fs::write(&train, "{\"prompt\": \"t\", \"answer\": 1}").unwrap();
        std::fs::write(&eval, "{\"prompt\": \"e0\", \"answer\": 1}\n{\"prompt\": \"e1\", \"answer\": 1}").unwrap();
        let rows = Jsonl::open(&train, Some(&eval), &Columns::default(), 0).unwrap();
        assert_eq!(rows.held_out(1).unwrap()[0].prompt, "e0");
        let error = rows.held_out(3).unwrap_err().to_string();
        assert!(
            error.ends_with("has 2 held-out prompts, 3 were asked for (set `num_prompts` of `[eval]` to at most 2)"),
            "{error}"
        );
        let error = Jsonl::open(&train, None, &Columns::default(), 0).unwrap().held_out(1).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("has no held-out prompts (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)")
        );
    }
}
