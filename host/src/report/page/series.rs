//! Series of a run in a page: columns of numbers with few digits. Long columns are averaged over
//! buckets of steps.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Number, Value};

use crate::report::found::{Column, Lines};

/// Number of significant digits in a page.
const DIGITS: i32 = 5;

/// Positions that several series share: the steps, and the run's progress after each.
#[derive(Debug, Default, Serialize)]
pub struct Grid {
    step: Vec<Value>,
    tokens: Vec<Value>,
    completions: Vec<Value>,
    seconds: Vec<Value>,
}

/// A series: its values at the positions of a grid.
#[derive(Debug, Serialize, PartialEq)]
pub struct Series {
    /// Index of the grid among those of the run.
    pub grid: usize,
    /// Values, or the mean of each bucket; null where there is no number.
    pub y: Vec<Value>,
    /// Smallest value of each bucket; empty without buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub low: Vec<Value>,
    /// Largest value of each bucket; empty without buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub high: Vec<Value>,
}

/// Builder for the series of one run, and the grids of their positions.
pub struct Columns<'a> {
    lines: &'a Lines,
    /// Tokens, completions and seconds so far, at each line; NaN where they are unknown.
    progress: [Vec<f64>; 3],
    /// Index of the grid for each set of lines and bucket width.
    patterns: BTreeMap<(Vec<u32>, Option<u64>), usize>,
    /// The grids built so far.
    pub grids: Vec<Grid>,
}

impl<'a> Columns<'a> {
    /// Starts from a run's lines.
    pub fn new(lines: &'a Lines) -> Self {
        let progress = [
            at_each_line(lines, "num_tokens"),
            at_each_line(lines, "num_completions"),
            lines.running_sum("step_time"),
        ];
        Self {
            lines,
            progress,
            patterns: BTreeMap::new(),
            grids: Vec::new(),
        }
    }

    /// The values of `name`, one by one, or averaged over buckets of `bucket` steps.
    pub fn series(&mut self, name: &str, bucket: Option<u64>) -> Series {
        let Column { rows, values } = self.lines.column(name);
        let ranges = ranges(
            rows.iter().map(|row| self.lines.steps[*row as usize]),
            bucket,
        );
        let next = self.grids.len();
        let grid = *self.patterns.entry((rows.clone(), bucket)).or_insert(next);
        if grid == next {
            self.grids.push(self.grid(rows, &ranges, bucket));
        }
        let mut series = Series {
            grid,
            y: Vec::new(),
            low: Vec::new(),
            high: Vec::new(),
        };
        for range in ranges {
            let values = &values[range];
            series.y.push(short(mean(values)));
            if bucket.is_some() {
                series.low.push(short(extreme(values, f64::min)));
                series.high.push(short(extreme(values, f64::max)));
            }
        }
        series
    }

    fn grid(&self, rows: &[u32], ranges: &[std::ops::Range<usize>], bucket: Option<u64>) -> Grid {
        let mut grid = Grid::default();
        for range in ranges {
            let rows = &rows[range.clone()];
            let step = self.lines.steps[rows[0] as usize];
            // The middle of the bucket, in every run, even if the run lacks some of its steps.
            let step = bucket.map_or(step, |width| step / width * width + (width - 1) / 2);
            grid.step.push(step.into());
            let [tokens, completions, seconds] = self.progress.each_ref().map(|values| {
                let values: Vec<f64> = rows.iter().map(|row| values[*row as usize]).collect();
                rounded(mean(&values), 9)
            });
            grid.tokens.push(tokens);
            grid.completions.push(completions);
            grid.seconds.push(seconds);
        }
        grid
    }
}

/// The value of `name` at each line; NaN where it is unknown.
fn at_each_line(lines: &Lines, name: &str) -> Vec<f64> {
    let mut values = vec![f64::NAN; lines.steps.len()];
    for (row, value) in lines.column(name).numbers() {
        values[row] = value;
    }
    values
}

/// Ranges of the ascending `steps` that share a bucket; without buckets, each step alone.
fn ranges(steps: impl Iterator<Item = u64>, bucket: Option<u64>) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    let mut last = None;
    for (at, step) in steps.enumerate() {
        let key = bucket.map_or(step, |width| step / width);
        match ranges.last_mut() {
            Some(range) if last == Some(key) => range.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
        last = Some(key);
    }
    ranges
}

/// Mean of the finite values; NaN if there are none.
fn mean(values: &[f64]) -> f64 {
    let numbers = values.iter().filter(|value| value.is_finite());
    numbers.clone().sum::<f64>() / numbers.count() as f64
}

fn extreme(values: &[f64], of: fn(f64, f64) -> f64) -> f64 {
    values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .reduce(of)
        .unwrap_or(f64::NAN)
}

/// A number with few digits; null if it is not finite.
pub fn short(value: f64) -> Value {
    rounded(value, DIGITS)
}

fn rounded(value: f64, digits: i32) -> Value {
    if value == 0.0 {
        return Value::from(0);
    }
    // Parsing gives the nearest number with that many digits, and JSON writes no more digits of it.
    let near: f64 = format!("{value:.*e}", digits as usize - 1)
        .parse()
        .unwrap_or(value);
    if near.fract() == 0.0 && near.abs() < 1e15 {
        return Value::from(near as i64);
    }
    Number::from_f64(near).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(count: u64, value: impl Fn(u64) -> f64) -> Lines {
        let line = |step| {
            format!(
                "{}\n",
                json!({ "step": step, "kl": value(step), "num_tokens": 10 * step, "step_time": 0.5 })
            )
        };
        Lines::parse((1..=count).map(line).collect::<String>().as_bytes()).unwrap()
    }

    #[test]
    fn keeps_few_values_as_they_are() {
        let lines = lines(3, |step| 1.0 / step as f64);
        let mut columns = Columns::new(&lines);
        let series = columns.series("kl", None);
        assert_eq!(json!(series), json!({ "grid": 0, "y": [1, 0.5, 0.33333] }));
        let seconds = columns.series("step_time", None);
        assert_eq!(seconds.grid, 0, "the same places");
        assert_eq!(
            json!(columns.grids),
            json!([{ "step": [1, 2, 3], "tokens": [10, 20, 30], "completions": [null, null, null], "seconds": [0.5, 1, 1.5] }])
        );
    }

    #[test]
    fn a_bucket_keeps_mean_and_extremes() {
        let lines = lines(7, |step| if step == 5 { 100.0 } else { step as f64 });
        let mut columns = Columns::new(&lines);
        let series = columns.series("kl", Some(4));
        let expected = json!({ "grid": 0, "y": [2, 29.25], "low": [1, 4], "high": [3, 100] });
        assert_eq!(json!(series), expected);
        assert_eq!(json!(columns.grids[0].step), json!([1, 5]));
    }

    #[test]
    fn a_value_that_is_not_a_number_is_a_gap() {
        let lines = lines(4, |step| if step < 3 { f64::NAN } else { 2.0 });
        let mut columns = Columns::new(&lines);
        assert_eq!(
            json!(columns.series("kl", None).y),
            json!([null, null, 2, 2])
        );
        let series = columns.series("kl", Some(2));
        assert_eq!(
            json!([series.y, series.low]),
            json!([[null, 2, 2], [null, 2, 2]])
        );
        assert_eq!(columns.series("absent", None).y, Vec::<Value>::new());
    }

    #[test]
    fn prints_short_numbers() {
        let shown = [0.123456789, 1234567.0, 1.5e-9, -0.0, 48.0, f64::INFINITY].map(short);
        assert_eq!(
            json!(shown).to_string(),
            "[0.12346,1234600,1.5e-9,0,48,null]"
        );
    }
}
