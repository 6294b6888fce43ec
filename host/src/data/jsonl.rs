//! Prompts from JSONL files: which of their rows there are, and in which order.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use capo_loader::files;
use rayon::prelude::*;

use super::row::parse;
use super::row_check::{self, Demands, Finding, OnBadRow, Purpose};
use super::{Chat, Columns, Example, Row, ensure_available};
use crate::rng;

/// Most lines that a description names.
const MOST_LINES: usize = 5;

/// The rows of a training file and of an optional file of held-out prompts, in memory.
#[derive(Clone, Debug)]
pub struct Jsonl {
    train: File,
    eval: Option<File>,
    seed: u64,
    /// The epoch whose order is at hand, and that order.
    order: (u64, Vec<usize>),
}

/// The rows of a file that can be used.
#[derive(Clone, Debug)]
struct File {
    name: Arc<str>,
    rows: Arc<Vec<Example>>,
    /// The lines of those that are left out.
    skipped: Vec<usize>,
    /// Where rows are still being checked.
    finding: Option<Finding>,
}

impl Jsonl {
    /// Reads both files whole; rows are checked now, or, where that would take long, while training goes on.
    ///
    /// Errors name the file, the line and the column.
    pub fn open(
        train: &Path,
        eval: Option<&Path>,
        columns: &Columns,
        seed: u64,
        demands: &Demands<'_>,
    ) -> Result<Self> {
        let mut train = File::read(train, columns, demands)?;
        if demands.purpose != Purpose::Measuring {
            train.check(demands, demands.purpose == Purpose::Teaching)?;
        }
        let mut eval = eval.map(|path| File::read(path, columns, demands)).transpose()?;
        if let Some(eval) = &mut eval {
            eval.check(demands, false)?;
        }
        let order = (0, epoch_order(seed, 0, train.rows.len()));
        Ok(Jsonl { train, eval, seed, order })
    }

    /// The prompt at `cursor`: each epoch passes once over all rows in its own random order. It depends on the seed and on the rows
    /// that can be used, as if no others had been in the file.
    ///
    /// # Errors
    ///
    /// A bad row anywhere, found since the files were opened.
    pub fn train(&mut self, cursor: u64) -> Result<Example> {
        if let Some(sentence) = self.train.finding.as_ref().and_then(|finding| finding.get()) {
            bail!("{sentence}");
        }
        let rows = self.train.rows.len() as u64;
        let epoch = cursor / rows;
        if self.order.0 != epoch {
            self.order = (epoch, epoch_order(self.seed, epoch, self.train.rows.len()));
        }
        Ok(self.train.rows[self.order.1[(cursor % rows) as usize]].clone())
    }

    /// The first `count` rows of the eval file; no eval file, or fewer rows, is an error.
    pub fn held_out(&self, count: usize) -> Result<Vec<Example>> {
        let Some(eval) = &self.eval else {
            bail!(
                "dataset `{}` has no held-out prompts (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)",
                self.train.name
            );
        };
        ensure_available(&format!("`{}`", eval.name), eval.rows.len(), count)?;
        Ok(eval.rows[..count].to_vec())
    }

    /// The files, their numbers of rows, and what was left out.
    pub(super) fn describe(&self) -> String {
        let files = std::iter::once(&self.train).chain(self.eval.as_ref().filter(|eval| !eval.skipped.is_empty()));
        files.map(File::describe).collect::<Vec<_>>().join("; ")
    }
}

impl File {
    /// Reads the rows; lines that are none are left out or an error.
    fn read(path: &Path, columns: &Columns, demands: &Demands<'_>) -> Result<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let (mut rows, mut skipped) = (Vec::new(), Vec::new());
        for (line, row) in lines(path, &name, columns, demands.chat)? {
            match row {
                Ok(row) => rows.push(row),
                Err(_) if demands.on_bad_row == OnBadRow::Skip => skipped.push(line),
                Err(error) => return Err(error.context(Row { file: name, line }.is_bad())),
            }
        }
        let file = Self { name, rows: Arc::new(rows), skipped, finding: None };
        file.check_any()?;
        Ok(file)
    }

    /// Refuses or leaves out the rows that do not meet the demands.
    fn check(&mut self, demands: &Demands<'_>, target: bool) -> Result<()> {
        let (skipped, finding) = row_check::check(&mut self.rows, demands, target)?;
        self.skipped.extend(skipped);
        self.skipped.sort_unstable();
        self.finding = finding;
        self.check_any()
    }

    fn check_any(&self) -> Result<()> {
        let Self { name, rows, skipped, .. } = self;
        let skipped = if skipped.is_empty() { String::new() } else { format!(" but {} bad ones", skipped.len()) };
        ensure!(!rows.is_empty(), "`{name}` holds no rows{skipped} (expected one JSON object per line)");
        Ok(())
    }

    fn describe(&self) -> String {
        let Self { name, rows, skipped, .. } = self;
        let rows = rows.len();
        let Some(((first, more), count)) = skipped.split_first().zip(Some(skipped.len())) else {
            return format!("{name} ({rows} rows)");
        };
        let others: String = more.iter().take(MOST_LINES - 1).map(|line| format!(", {line}")).collect();
        let rest = if count > MOST_LINES { ", ..." } else { "" };
        format!("{name} ({rows} rows, {} skipped: line {first}{others}{rest})", count)
    }
}

fn epoch_order(seed: u64, epoch: u64, rows: usize) -> Vec<usize> {
    rng::permutation(&mut rng::stream(seed, "data.order", &[epoch]), rows)
}

/// The rows of a file with the usual column names, in order.
///
/// Errors name the file, the line and the column.
pub fn rows(path: &Path) -> Result<Vec<Example>> {
    let name: Arc<str> = path.display().to_string().into();
    let rows = lines(path, &name, &Columns::default(), None)?
        .into_iter()
        .map(|(line, row)| row.with_context(|| format!("bad row at line {line} of `{name}`")))
        .collect::<Result<Vec<_>>>()?;
    ensure!(!rows.is_empty(), "`{name}` holds no rows (expected one JSON object per line)");
    Ok(rows)
}

/// Every line that is not empty, with its number; conversations are written many at a time.
fn lines(
    path: &Path,
    name: &Arc<str>,
    columns: &Columns,
    chat: Option<&Chat>,
) -> Result<Vec<(usize, Result<Example>)>> {
    let bytes = files::read(path)?;
    let lines = bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty());
    let row = |(index, line)| {
        let row = Row { file: Arc::clone(name), line: index + 1 };
        (row.line, parse(line, columns, chat, row))
    };
    let Some(chat) = chat else { return Ok(lines.map(row).collect()) };
    let lines: Vec<(usize, &[u8])> = lines.collect();
    Ok(chat.on_threads(|| lines.into_par_iter().map(row).collect()))
}

#[cfg(test)]
mod tests {
    use super::super::{Tokenizer, TokenizerConfigs};
    use super::*;

    fn open(text: &str, columns: &Columns) -> Result<Jsonl> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        open_files(&path, None, columns, 3, OnBadRow::Error)
    }

    /// Opens files whose rows the embedded tokenizer need not be able to read.
    fn open_files(
        train: &Path,
        eval: Option<&Path>,
        columns: &Columns,
        seed: u64,
        on_bad_row: OnBadRow,
    ) -> Result<Jsonl> {
        let tokenizer = any_text();
        let (vocab_size, max_prompt_length) = (tokenizer.vocab_size(), 16);
        let purpose = Purpose::Training;
        let demands = Demands { tokenizer: &tokenizer, chat: None, vocab_size, max_prompt_length, on_bad_row, purpose };
        Jsonl::open(train, eval, columns, seed, &demands)
    }

    /// A tokenizer that has one id for whatever it does not know.
    fn any_text() -> Tokenizer {
        let json = r#"{"model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<eos>": 1}, "unk_token": "<unk>"}}"#;
        let configs = TokenizerConfigs { tokenizer: serde_json::json!({"eos_token": "<eos>"}), ..Default::default() };
        Tokenizer::from_bytes(json.as_bytes(), &configs).unwrap()
    }

    /// The whole error chain with the directory removed.
    fn error(text: &str) -> String {
        let error = format!("{:#}", open(text, &Columns::default()).unwrap_err());
        let (before, after) = error.split_once('`').unwrap();
        format!("{before}`{}", &after[after.find("rows.jsonl").unwrap()..])
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
            assert_eq!(
                error(&format!("{good}{row}")),
                format!("bad row at line 3 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): {expected}")
            );
        }
        let columns = Columns::default();
        let broken = open_files(Path::new("absent.jsonl"), None, &columns, 0, OnBadRow::Error).unwrap_err().to_string();
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
        let mut epoch =
            |start: u64| (start..start + 20).map(|cursor| rows.train(cursor).unwrap().answer).collect::<Vec<_>>();
        let (first, second) = (epoch(0), epoch(20));
        assert_ne!(first, second);
        assert_eq!(first, epoch(0), "going back must give the same order");
        for order in [first, second] {
            let distinct: std::collections::BTreeSet<_> = order.into_iter().collect();
            assert_eq!(distinct.len(), 20);
        }
        let far = rows.train(20_000_007).unwrap().answer;
        assert_eq!(far, open(&text, &Columns::default()).unwrap().train(20_000_007).unwrap().answer);
    }

    #[test]
    fn held_out_rows_come_from_the_eval_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (train, eval) = (directory.path().join("train.jsonl"), directory.path().join("eval.jsonl"));
        std::fs::write(&train, "{\"prompt\": \"t\", \"answer\": 1}").unwrap();
        std::fs::write(&eval, "{\"prompt\": \"e0\", \"answer\": 1}\n{\"prompt\": \"e1\", \"answer\": 1}").unwrap();
        let rows = open_files(&train, Some(&eval), &Columns::default(), 0, OnBadRow::Error).unwrap();
        assert_eq!(rows.held_out(1).unwrap()[0].prompt, "e0");
        let error = rows.held_out(3).unwrap_err().to_string();
        assert!(
            error.ends_with("has 2 held-out prompts, 3 were asked for (set `num_prompts` of `[eval]` to at most 2)"),
            "{error}"
        );
        let error = open_files(&train, None, &Columns::default(), 0, OnBadRow::Error);
        let error = error.unwrap().held_out(1).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("has no held-out prompts (set `eval_dataset_name`, or `num_prompts` of `[eval]` to 0)")
        );
    }

    #[test]
    fn rows_that_are_skipped_leave_the_order_of_a_file_without_them() {
        let directory = tempfile::tempdir().unwrap();
        let (mixed, good) = (directory.path().join("mixed.jsonl"), directory.path().join("good.jsonl"));
        let row = |row: usize| format!("{{\"prompt\": \"p{row}\", \"answer\": {row}}}\n");
        // Every third line is bad, in one of three ways.
        let bad = ["{\"prompt\": \"p\"}\n", "no json\n", "[]\n"];
        let all: String = (0..24).map(|i| if i % 3 == 2 { bad[i / 3 % 3].to_owned() } else { row(i) }).collect();
        std::fs::write(&mixed, all).unwrap();
        std::fs::write(&good, (0..24).filter(|i| i % 3 != 2).map(row).collect::<String>()).unwrap();
        let skip = |path: &Path| open_files(path, None, &Columns::default(), 3, OnBadRow::Skip).unwrap();
        let (mut mixed, mut good) = (skip(&mixed), skip(&good));
        for cursor in [0, 1, 2, 15, 16, 31, 100] {
            let (a, b) = (mixed.train(cursor).unwrap(), good.train(cursor).unwrap());
            assert_eq!((a.prompt, a.answer), (b.prompt, b.answer));
        }
        assert!(mixed.describe().ends_with("mixed.jsonl (16 rows, 8 skipped: line 3, 6, 9, 12, 15, ...)"), "{mixed:?}");
        assert!(good.describe().ends_with("good.jsonl (16 rows)"), "{good:?}");
    }

    #[test]
    fn a_file_of_bad_rows_alone_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, "{}\n[]\n").unwrap();
        let error = open_files(&path, None, &Columns::default(), 0, OnBadRow::Skip).unwrap_err().to_string();
        assert!(error.ends_with("holds no rows but 2 bad ones (expected one JSON object per line)"), "{error}");
    }

    #[test]
    fn what_the_background_finds_is_told_by_the_next_prompt() {
        let mut rows = open("{\"prompt\": \"p\", \"answer\": 1}", &Columns::default()).unwrap();
        let finding = Finding::default();
        rows.train.finding = Some(Arc::clone(&finding));
        rows.train(0).unwrap();
        finding.set("bad row at line 9".into()).unwrap();
        assert_eq!(rows.train(1).unwrap_err().to_string(), "bad row at line 9");
    }
}
