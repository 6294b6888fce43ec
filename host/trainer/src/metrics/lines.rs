//! Reads `metrics.jsonl` into columns.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result};
use capo_system::files;
use serde_json::{Map, Value};

/// Longest line that is read, in bytes; a step's metrics take a few thousand.
const LONGEST: u64 = 1 << 24;

/// The metrics of a run, by name.
#[derive(Debug, Default, Clone)]
pub struct Lines {
    /// The step of each line, ascending.
    pub steps: Vec<u64>,
    /// The values of each metric.
    pub columns: BTreeMap<String, Column>,
    /// Numbers of damaged lines, from 1. A line is damaged if it is not a whole object, or if its
    /// step is not later than that of the line before.
    damaged: Vec<u64>,
    /// Number of all lines, damaged ones included.
    count: u64,
}

/// The values of one metric.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Column {
    /// Indices into [`Lines::steps`] of the lines that have the metric.
    pub rows: Vec<u32>,
    /// Values in these lines; null becomes NaN.
    pub values: Vec<f64>,
}

impl Column {
    /// The values that are not NaN, each with the index of its line.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = (usize, f64)> {
        self.rows
            .iter()
            .map(|row| *row as usize)
            .zip(self.values.iter().copied())
            .filter(|(_, value)| !value.is_nan())
    }

    /// Means of the first and of the last `most` numbers. If there are fewer than twice as many,
    /// the means of the two halves. `None` without a number.
    pub fn ends(&self, most: usize) -> Option<(f64, f64)> {
        let numbers: Vec<f64> = self.numbers().map(|(_, value)| value).collect();
        let count = most.min(numbers.len().div_ceil(2));
        if count == 0 {
            return None;
        }
        let first = &numbers[..count];
        let last = &numbers[numbers.len() - count..];
        Some((mean(first), mean(last)))
    }

    /// The last value that is not NaN.
    pub fn last(&self) -> Option<f64> {
        self.numbers().next_back().map(|(_, value)| value)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

impl Lines {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self> {
        let opened = files::size(path).and_then(|_| File::open(path));
        let lines = opened.and_then(|file| Self::parse(BufReader::new(file)));
        lines.with_context(|| format!("cannot read `{}`", path.display()))
    }

    /// The metrics in a file's bytes.
    pub fn parse(mut file: impl BufRead) -> io::Result<Self> {
        let mut lines = Self::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            (&mut file).take(LONGEST).read_until(b'\n', &mut line)?;
            if line.is_empty() {
                return Ok(lines);
            }
            lines.count += 1;
            if lines.add(&line).is_none() {
                lines.damaged.push(lines.count);
            }
        }
    }

    /// Adds a line. Returns `None` if it is damaged.
    fn add(&mut self, line: &[u8]) -> Option<()> {
        let values: Map<String, Value> = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        let step = values
            .get("step")?
            .as_u64()
            .filter(|step| self.steps.last().is_none_or(|last| last < step))?;
        let row = u32::try_from(self.steps.len()).ok()?;
        self.steps.push(step);
        for (name, value) in values.into_iter().filter(|(name, _)| name != "step") {
            let value = if value.is_null() {
                Some(f64::NAN)
            } else {
                value.as_f64()
            };
            let column = self.columns.entry(name).or_default();
            column.rows.push(row);
            column.values.push(value.unwrap_or(f64::NAN));
        }
        Some(())
    }

    /// The values of `name`; an empty column if no line has it.
    pub fn column(&self, name: &str) -> &Column {
        static NONE: Column = Column {
            rows: Vec::new(),
            values: Vec::new(),
        };
        self.columns.get(name).unwrap_or(&NONE)
    }

    /// The lines: each step with its values by name; null becomes NaN. Step 0 is the measurement
    /// before training.
    pub fn rows(&self) -> impl Iterator<Item = (u64, BTreeMap<String, f64>)> {
        let mut rows = vec![BTreeMap::new(); self.steps.len()];
        for (name, column) in &self.columns {
            for (row, value) in column.rows.iter().zip(&column.values) {
                rows[*row as usize].insert(name.clone(), *value);
            }
        }
        self.steps.iter().copied().zip(rows)
    }

    /// Message about steps from 1 to `last` without a line; `None` if each has one.
    pub fn missing(&self, last: u64) -> Option<String> {
        const MOST: usize = 4;
        let mut gaps = Vec::new();
        let mut next = 1;
        for step in self
            .steps
            .iter()
            .copied()
            .filter(|step| (1..=last).contains(step))
            .chain([last + 1])
        {
            if next < step {
                gaps.push(next..=step - 1);
            }
            next = step + 1;
        }
        let more = if gaps.len() > MOST { " and others" } else { "" };
        let steps = gaps
            .iter()
            .take(MOST)
            .map(shown)
            .collect::<Vec<_>>()
            .join(", ");
        match &gaps[..] {
            [] => None,
            [gap] if gap.start() == gap.end() => {
                Some(format!("the line of step {steps} is missing"))
            }
            _ => Some(format!("the lines of steps {steps}{more} are missing")),
        }
    }

    /// Sum of `name` up to each line; NaN and absent values count as 0.
    pub fn running_sum(&self, name: &str) -> Vec<f64> {
        let mut sums = vec![0.0; self.steps.len()];
        self.column(name)
            .numbers()
            .for_each(|(row, value)| sums[row] = value);
        let mut sum = 0.0;
        for value in &mut sums {
            sum += *value;
            *value = sum;
        }
        sums
    }

    /// Message about damage to the file; `None` if it is whole. A torn last line of a run `at_work`
    /// is no damage.
    pub fn remark(&self, at_work: bool) -> Option<String> {
        match self.damaged.as_slice() {
            [] => None,
            [last] if at_work && *last == self.count => None,
            [last] if *last == self.count => Some("the last line is torn and left out".to_owned()),
            [line] => Some(format!("line {line} is damaged and left out")),
            [first, others @ ..] => Some(format!(
                "line {first} and {} more are damaged and left out",
                others.len()
            )),
        }
    }
}

/// A gap of steps in words.
fn shown(gap: &RangeInclusive<u64>) -> String {
    let first = gap.start();
    let last = gap.end();
    if first == last {
        first.to_string()
    } else {
        format!("{first} to {last}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Lines {
        Lines::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn reads_columns_with_gaps() {
        let lines = lines(
            "{\"step\":0,\"eval\":0.5}\n{\"step\":1,\"kl\":null,\"t\":2}\n{\"step\":3,\"kl\":0.25,\"t\":3}\n",
        );
        assert_eq!(lines.steps, [0, 1, 3]);
        assert_eq!(
            lines.column("kl").numbers().collect::<Vec<_>>(),
            [(2, 0.25)]
        );
        assert_eq!(lines.column("kl").rows, [1, 2]);
        assert_eq!(lines.column("absent").last(), None);
        let column = Column {
            rows: (0..6).collect(),
            values: vec![1.0, 3.0, 8.0, f64::NAN, 5.0, 7.0],
        };
        assert_eq!(
            [1, 2, 9].map(|most| column.ends(most)),
            [Some((1.0, 7.0)), Some((2.0, 6.0)), Some((4.0, 20.0 / 3.0))]
        );
        assert_eq!(lines.column("absent").ends(2), None);
        assert_eq!(lines.running_sum("t"), [0.0, 2.0, 5.0]);
        assert_eq!(lines.remark(false), None);
    }

    #[test]
    fn names_steps_without_a_line() {
        let missing = |steps: &[u64], last| {
            let text: String = steps
                .iter()
                .map(|step| format!("{{\"step\":{step}}}\n"))
                .collect();
            lines(&text).missing(last).unwrap_or_default()
        };
        assert_eq!(
            [
                missing(&[], 0),
                missing(&[0, 1, 2], 2),
                missing(&[1, 2, 3], 2)
            ],
            ["", "", ""]
        );
        assert_eq!(missing(&[], 1), "the line of step 1 is missing");
        assert_eq!(
            missing(&[0, 3], 5),
            "the lines of steps 1 to 2, 4 to 5 are missing"
        );
        assert_eq!(
            missing(&[2, 4, 5], 6),
            "the lines of steps 1, 3, 6 are missing"
        );
        let odd: Vec<u64> = (0..20).map(|step| 2 * step).collect();
        assert_eq!(
            missing(&odd, 38),
            "the lines of steps 1, 3, 5, 7 and others are missing"
        );
    }

    #[test]
    fn leaves_out_damaged_lines_and_reports_them() {
        let remark = |text: &str, at_work| lines(text).remark(at_work);
        let torn = "{\"step\":1}\n{\"step\":2,\"rew";
        assert_eq!(remark(torn, true), None);
        assert_eq!(
            remark(torn, false).unwrap(),
            "the last line is torn and left out"
        );
        let middle = "{\"step\":1}\nnot ours\n{\"step\":2}\n";
        assert_eq!(
            remark(middle, true).unwrap(),
            "line 2 is damaged and left out"
        );
        assert_eq!(lines(middle).steps, [1, 2]);
        let twice = "{\"step\":1}\n{\"step\":1}\n[]\n{\"step\":-1}\n{\"step\":2}\n\u{0}\n";
        assert_eq!(
            remark(twice, false).unwrap(),
            "line 2 and 3 more are damaged and left out"
        );
        assert_eq!(lines(twice).steps, [1, 2]);
    }
}
