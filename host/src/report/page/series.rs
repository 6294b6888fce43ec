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
        let newest = |name: &str| {
            let mut values = vec![f64::NAN; lines.steps.len()];
            lines
                .column(name)
                .numbers()
                .for_each(|(row, value)| values[row] = value);
            values
        };
        let progress = [
            newest("num_tokens"),
            newest("num_completions"),
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
        let each = |of: fn(&[f64]) -> f64| {
            ranges
                .iter()
                .map(|range| short(of(&values[range.clone()])))
                .collect()
        };
        let (low, high) = match bucket {
            None => (Vec::new(), Vec::new()),
            Some(_) => (
                each(|values| extreme(values, f64::min)),
                each(|values| extreme(values, f64::max)),
            ),
        };
        Series {
            grid,
            y: each(mean),
            low,
            high,
        }
    }

    fn grid(&self, rows: &[u32], ranges: &[std::ops::Range<usize>], bucket: Option<u64>) -> Grid {
        let places = || ranges.iter().map(|range| &rows[range.clone()]);
        let step = |rows: &[u32]| match (self.lines.steps[rows[0] as usize], bucket) {
            // The middle of the bucket, in every run, even if the run lacks some of its steps.
            (step, Some(width)) => step / width * width + (width - 1) / 2,
            (step, None) => step,
        };
        let of = |values: &Vec<f64>| {
            let mean = |rows: &[u32]| {
                mean(
                    &rows
                        .iter()
                        .map(|row| values[*row as usize])
                        .collect::<Vec<_>>(),
                )
            };
            places().map(|rows| rounded(mean(rows), 9)).collect()
        };
        let [tokens, completions, seconds] = self.progress.each_ref().map(of);
        Grid {
            step: places().map(|rows| step(rows).into()).collect(),
            tokens,
            completions,
            seconds,
        }
    }
}

/// Ranges of the ascending `steps` that share a bucket; without buckets, each step alone.
fn ranges(steps: impl Iterator<Item = u64>, bucket: Option<u64>) -> Vec<std::ops::Range<usize>> {
    let (mut ranges, mut last): (Vec<std::ops::Range<usize>>, _) = (Vec::new(), None);
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
    let numbers = || values.iter().filter(|value| value.is_finite());
    numbers().sum::<f64>() / numbers().count() as f64
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
    fn few_values_stand_as_they_are() {
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
    fn what_is_no_number_is_a_gap() {
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
    fn numbers_are_short() {
        let shown = [0.123456789, 1234567.0, 1.5e-9, -0.0, 48.0, f64::INFINITY].map(short);
        assert_eq!(
            json!(shown).to_string(),
            "[0.12346,1234600,1.5e-9,0,48,null]"
        );
    }
}
