//! The rows of one dataset in memory: the rows that are used, and counts of the rows that were left
//! out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use sha2::Sha256;

use super::files::{self, Unit};
use super::row::{Parser, Reading};
use super::row_check::{self, Demands, Finding, OnBadRow, Purpose};
use super::{Example, Row};

/// Largest number of rows that a description names.
const MOST_NAMED: usize = 5;

/// A dataset in files, with the rules for reading its rows.
#[derive(Clone, Debug)]
pub struct Source {
    /// The dataset's name in the settings.
    pub name: String,
    /// The dataset's files, in order.
    pub files: Vec<PathBuf>,
    /// Rules for reading the rows.
    pub reading: Reading,
    /// Sampling weight among several datasets.
    pub weight: Option<f64>,
}

/// The rows of a dataset that can be used.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) name: String,
    pub(super) rows: Arc<Vec<Example>>,
    left_out: LeftOut,
    is_sharded: bool,
    /// Receives the error of rows that are still being checked.
    finding: Option<Finding>,
}

/// Numbers or places of rows that are not used, by reason.
#[derive(Clone, Debug, Default)]
struct LeftOut {
    bad: Vec<Row>,
    long: usize,
    filtered: usize,
    not_sampled: usize,
}

impl Set {
    /// Reads the rows; a line that is not a row is left out or is an error.
    pub(super) fn read(source: &Source, demands: &Demands<'_>) -> Result<Self> {
        let mut rows = Vec::new();
        let mut left_out = LeftOut::default();
        let parser = Parser {
            reading: &source.reading,
            chat: demands.chat,
            teaches: demands.purpose == Purpose::Teaching,
        };
        for file in &source.files {
            for (row, example) in lines(file, parser)? {
                match example {
                    Ok(Some(example)) => rows.push(example),
                    Ok(None) => left_out.filtered += 1,
                    Err(_) if demands.on_bad_row == OnBadRow::Skip => left_out.bad.push(row),
                    Err(error) => return Err(error.context(row.is_bad())),
                }
            }
        }
        let set = Self {
            name: source.name.clone(),
            rows: Arc::new(rows),
            left_out,
            is_sharded: source.files.len() > 1,
            finding: None,
        };
        set.check_any()?;
        Ok(set)
    }

    /// Refuses or leaves out the rows that do not meet the demands.
    pub(super) fn check(&mut self, demands: &Demands<'_>, target: bool) -> Result<()> {
        let checked = row_check::check(&mut self.rows, demands, target)?;
        self.left_out.bad.extend(checked.bad);
        self.left_out
            .bad
            .sort_by(|a, b| (&a.file, a.number).cmp(&(&b.file, b.number)));
        self.left_out.long = checked.long;
        self.finding = checked.finding;
        self.check_any()
    }

    /// Keeps at most `most` rows, drawn by `seed` for the dataset with this `index`; 0 keeps all.
    pub(super) fn sample(&mut self, most: usize, seed: u64, index: usize) {
        let rows = self.rows.len();
        if most == 0 || most >= rows {
            return;
        }
        let mut drawn = vec![false; rows];
        let order = host_rng::permutation(
            &mut host_rng::stream(seed, "data.sample", &[index as u64]),
            rows,
        );
        order[..most].iter().for_each(|row| drawn[*row] = true);
        let mut drawn = drawn.into_iter();
        Arc::make_mut(&mut self.rows).retain(|_| drawn.next().unwrap_or(false));
        self.left_out.not_sampled = rows - most;
    }

    /// Returns an error if the background check has found a bad row.
    pub(super) fn check_finding(&self) -> Result<()> {
        match self.finding.as_ref().and_then(|finding| finding.get()) {
            Some(sentence) => bail!("{sentence}"),
            None => Ok(()),
        }
    }

    /// Returns the place for a background check's finding, as if rows were still being checked.
    #[cfg(test)]
    pub(super) fn find_later(&mut self) -> Finding {
        self.finding.get_or_insert_default().clone()
    }

    pub(super) fn digest(&self, hash: &mut Sha256) {
        self.rows.iter().for_each(|row| row.digest(hash));
    }

    fn check_any(&self) -> Result<()> {
        let LeftOut {
            bad,
            long,
            filtered,
            ..
        } = &self.left_out;
        let parts = [
            (bad.len(), "bad ones"),
            (*long, "with prompts that are too long"),
            (*filtered, "that `filter` leaves out"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let but = if parts.is_empty() {
            String::new()
        } else {
            format!(" but {}", parts.join(", "))
        };
        let hint = match &self.left_out {
            LeftOut { filtered: 1.., .. } => "widen `filter`",
            LeftOut { long: 1.., .. } => "raise `data.max_prompt_length`",
            LeftOut { bad, .. } if !bad.is_empty() => {
                "set `data.on_bad_row` to `error`, which says what is wrong"
            }
            _ => "give it at least one",
        };
        ensure!(
            !self.rows.is_empty(),
            "`{}` holds no rows{but} ({hint})",
            self.name
        );
        Ok(())
    }

    /// Describes the dataset: its name, its number of rows, and the rows that were left out.
    pub(super) fn describe(&self) -> String {
        let LeftOut {
            bad,
            long,
            filtered,
            not_sampled,
        } = &self.left_out;
        let unanswered = self.rows.iter().filter(|row| row.answer.is_empty()).count();
        let counts = [
            (*long, "too long"),
            (*filtered, "filtered out"),
            (*not_sampled, "not sampled"),
            (unanswered, "without an answer"),
        ];
        let counts = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"));
        let skipped = (!bad.is_empty()).then(|| self.skipped(bad));
        let parts: Vec<String> = skipped.into_iter().chain(counts).collect();
        let parts = if parts.is_empty() {
            String::new()
        } else {
            format!(", {}", parts.join("; "))
        };
        format!("{} ({} rows{parts})", self.name, self.rows.len())
    }

    fn skipped(&self, bad: &[Row]) -> String {
        let unit = if bad[0].unit == Unit::Line {
            "line"
        } else {
            "row"
        };
        let named: Vec<String> = bad
            .iter()
            .take(MOST_NAMED)
            .map(|row| match self.is_sharded {
                true => format!("{} of `{}`", row.number, row.file),
                false => row.number.to_string(),
            })
            .collect();
        let rest = if bad.len() > MOST_NAMED { ", ..." } else { "" };
        format!("{} skipped: {unit} {}{rest}", bad.len(), named.join(", "))
    }

    pub(super) fn has_left_out(&self) -> bool {
        self.left_out.count() > 0
    }
}

impl LeftOut {
    fn count(&self) -> usize {
        self.bad.len() + self.long + self.filtered + self.not_sampled
    }
}

/// The rows of a dataset that meet the demands, in order, and the number of rows that were left
/// out.
pub fn examples(source: &Source, demands: &Demands<'_>) -> Result<(Vec<Example>, usize)> {
    let mut set = Set::read(source, demands)?;
    set.check(demands, false)?;
    let left_out = set.left_out.count();
    Ok((Arc::unwrap_or_clone(set.rows), left_out))
}

/// The rows of a file with the usual column names, in order.
///
/// Errors name the file, the row and the column.
pub fn rows(path: &Path) -> Result<Vec<Example>> {
    let parser = Parser {
        reading: &Reading::default(),
        chat: None,
        teaches: false,
    };
    let mut rows = Vec::new();
    for (row, example) in lines(path, parser)? {
        let example =
            example.with_context(|| format!("bad row at line {} of `{}`", row.number, row.file))?;
        rows.extend(example);
    }
    ensure!(
        !rows.is_empty(),
        "`{}` holds no rows (give it at least one)",
        path.display()
    );
    Ok(rows)
}

/// Every non-empty line of a file, with its place. Conversations are formatted by several threads.
fn lines(path: &Path, parser: Parser<'_>) -> Result<Vec<(Row, Result<Option<Example>>)>> {
    let file: Arc<str> = path.display().to_string().into();
    let text = files::read(path)?;
    let lines = text
        .bytes
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.trim_ascii().is_empty());
    let placed: Vec<(Row, &[u8])> = lines
        .map(|(index, line)| {
            let row = Row {
                file: Arc::clone(&file),
                unit: text.unit,
                number: index + 1,
            };
            (row, line)
        })
        .collect();
    if parser.chat.is_none() {
        return Ok(placed
            .into_iter()
            .map(|(row, line)| (row.clone(), parser.parse(line, row)))
            .collect());
    }
    Ok(placed
        .into_par_iter()
        .map(|(row, line)| (row.clone(), parser.parse(line, row)))
        .collect())
}
