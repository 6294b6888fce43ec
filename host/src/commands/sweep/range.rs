//! The values of a sweep.

use std::str::FromStr;

use anyhow::{Error, Result, anyhow, ensure};
use capo_plugin::wire::KeyRange;

/// Default number of values in a sweep.
const POINTS: usize = 9;
/// Largest number of values: a larger one would be a typing error.
const MOST_POINTS: usize = 1000;

/// A range `KEY=LOW..HIGH[:POINTS]` of values of one setting. They are evenly spaced in the
/// logarithm if both ends are positive, else linearly.
///
/// Values are rounded to a few digits. If both ends are written as whole numbers, every value is
/// whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    /// The setting, as in `--set`: `mask.0.fisher_threshold`.
    pub key: String,
    low: f64,
    high: f64,
    points: usize,
    whole: bool,
    /// Advice for the user if no value reaches a target.
    pub advice: &'static str,
}

impl FromStr for Range {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let range = Self::parse(text).ok_or_else(|| {
            anyhow!(
                "`--sweep {text}` is not a range of numbers (write `--sweep KEY=LOW..HIGH` or \
                 `KEY=LOW..HIGH:POINTS`)"
            )
        })?;
        let Self {
            key,
            low,
            high,
            points,
            ..
        } = &range;
        ensure!(
            key.starts_with("mask.") || key.starts_with("weight."),
            "`--sweep {text}`: `{key}` is no mask's or weight's setting, and a replay runs \
             nothing else (write `mask.0.KEY=...`)"
        );
        ensure!(
            low < high,
            "`--sweep {text}` begins at {low:?} and ends at {high:?} (the first end must be the \
             lower one)"
        );
        ensure!(
            (2..=MOST_POINTS).contains(points),
            "`--sweep {text}` has {points} points (give 2 to {MOST_POINTS})"
        );
        Ok(range)
    }
}

impl Range {
    /// The range that a component's author gives for `key`.
    pub fn of_author(key: &str, KeyRange { low, high, whole }: KeyRange) -> Self {
        let advice = "the range is the author's: `host replay --sweep` takes others";
        Self {
            key: key.to_owned(),
            low,
            high,
            points: POINTS,
            whole,
            advice,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (key, range) = text.split_once('=')?;
        let (range, points) = match range.split_once(':') {
            Some((range, points)) => (range, points.trim().parse().ok()?),
            None => (range, POINTS),
        };
        let (low, high) = range.split_once("..")?;
        let whole = low.trim().parse::<i32>().is_ok() && high.trim().parse::<i32>().is_ok();
        Some(Self {
            key: key.trim().to_owned(),
            low: finite(low)?,
            high: finite(high)?,
            points,
            whole,
            advice: "widen the range",
        })
    }

    /// The values in ascending order, including both ends.
    pub fn values(&self) -> Vec<f64> {
        let steps = self.points - 1;
        let inner = (1..steps)
            .map(|i| self.round(self.between(self.low, self.high, i as f64 / steps as f64)));
        let mut values: Vec<f64> = std::iter::once(self.low)
            .chain(inner)
            .chain([self.high])
            .collect();
        values.dedup();
        values
    }

    /// A rounded value half-way between two others; `None` if rounding leaves none between them.
    pub fn middle(&self, a: f64, b: f64) -> Option<f64> {
        let middle = self.round(self.between(a, b, 0.5));
        (a.min(b) < middle && middle < a.max(b)).then_some(middle)
    }

    /// The value as text in a config; all values of a range have one format.
    pub fn text(&self, value: f64) -> String {
        match (self.whole, self.exponential() && value != 0.0) {
            (true, _) => format!("{value}"),
            (_, true) => format!("{value:e}"),
            (_, false) => format!("{value:?}"),
        }
    }

    /// A range of the same key, between two of the values.
    pub fn between_values(&self, a: f64, b: f64) -> Self {
        Self {
            low: a.min(b),
            high: a.max(b),
            ..self.clone()
        }
    }

    pub fn toml(&self, value: f64) -> toml::Value {
        if self.whole {
            toml::Value::Integer(value as i64)
        } else {
            toml::Value::Float(value)
        }
    }

    /// The values as a column of text, each with as many digits as the longest needs.
    pub fn column(&self, values: &[f64]) -> Vec<String> {
        if self.whole {
            return values.iter().map(|&x| self.text(x)).collect();
        }
        let digits = values
            .iter()
            .map(|&x| self.digits(x))
            .max()
            .unwrap_or_default();
        values.iter().map(|&x| self.write(x, digits)).collect()
    }

    /// The value with so many digits behind the point.
    fn write(&self, x: f64, digits: usize) -> String {
        if self.exponential() {
            format!("{x:.digits$e}")
        } else {
            format!("{x:.digits$}")
        }
    }

    /// Number of digits behind the point that the value needs.
    fn digits(&self, x: f64) -> usize {
        (0..17)
            .find(|&digits| self.write(x, digits).parse() == Ok(x))
            .unwrap_or(17)
    }

    fn exponential(&self) -> bool {
        [self.low, self.high]
            .iter()
            .any(|x| *x != 0.0 && !(1e-3..1e6).contains(&x.abs()))
    }

    fn logarithmic(&self) -> bool {
        self.low > 0.0
    }

    fn between(&self, a: f64, b: f64, share: f64) -> f64 {
        if self.logarithmic() {
            on_line(a.ln(), b.ln(), share).exp()
        } else {
            on_line(a, b, share)
        }
    }

    /// Rounds to a hundredth of the distance between values, or finer. Logarithmic values keep at
    /// least three significant digits.
    fn round(&self, x: f64) -> f64 {
        let steps = (self.points - 1) as f64;
        let text = if self.whole {
            format!("{x:.0}")
        } else if self.logarithmic() {
            let digits =
                digits_of(((self.high.ln() - self.low.ln()) / steps).exp_m1()).clamp(3.0, 17.0);
            format!("{x:.*e}", digits as usize - 1)
        } else {
            format!(
                "{x:.*}",
                digits_of(self.high / steps - self.low / steps).clamp(0.0, 340.0) as usize
            )
        };
        // Adding zero turns -0 into 0.
        text.parse::<f64>()
            .map_or(x, |x| x.clamp(self.low, self.high) + 0.0)
    }
}

fn finite(text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok()?;
    number.is_finite().then_some(number)
}

/// A point of the line from `a` to `b`.
fn on_line(a: f64, b: f64, share: f64) -> f64 {
    a * (1.0 - share) + b * share
}

/// Number of digits behind the point that show a hundredth of `step`.
fn digits_of(step: f64) -> f64 {
    2.0 - step.log10().floor()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        let range: Range = text.parse().unwrap();
        range
            .values()
            .into_iter()
            .map(|value| range.text(value))
            .collect()
    }

    #[test]
    fn positive_ends_are_spaced_by_ratio_and_others_by_distance() {
        assert_eq!(
            values("mask.0.a=1e-4..1e-2:5"),
            ["1e-4", "3.16e-4", "1e-3", "3.16e-3", "1e-2"]
        );
        assert_eq!(
            values("mask.0.a=-0.1..0.1:5"),
            ["-0.1", "-0.05", "0.0", "0.05", "0.1"]
        );
        assert_eq!(values("mask.0.a=0..1.0").len(), 9);
        assert_eq!(
            values("mask.0.a=0.990..0.992:3"),
            ["0.99", "0.991", "0.992"]
        );
    }

    #[test]
    fn a_column_is_written_in_one_way() {
        let column = |text: &str| {
            let range: Range = format!("mask.0.a={text}").parse().unwrap();
            range.column(&range.values())
        };
        assert_eq!(column("1e-4..1e-2:3"), ["1e-4", "1e-3", "1e-2"]);
        assert_eq!(column("1e-4..1e-3:3"), ["1.00e-4", "3.16e-4", "1.00e-3"]);
        assert_eq!(
            column("0.0..1.0:5"),
            ["0.00", "0.25", "0.50", "0.75", "1.00"]
        );
    }

    #[test]
    fn whole_ends_give_whole_values() {
        assert_eq!(values("mask.0.a=1..4:9"), ["1", "2", "3", "4"]);
        assert_eq!(values("mask.0.a=-2..2:5"), ["-2", "-1", "0", "1", "2"]);
    }

    #[test]
    fn the_widest_and_the_narrowest_range_have_finite_ascending_values() {
        for text in [
            "-1.7e308..1.7e308",
            "1e-308..1.7e308",
            "1.0..1.0000000000000002",
            "0.0..5e-324",
            "1..2:1000",
        ] {
            let range: Range = format!("mask.0.a={text}").parse().unwrap();
            let values = range.values();
            assert!(
                values.is_sorted_by(|a, b| a < b) && values.iter().all(|x| x.is_finite()),
                "{text}: {values:?}"
            );
        }
    }

    #[test]
    fn halving_ends() {
        let range: Range = "mask.0.a=1e-4..1e-2".parse().unwrap();
        assert_eq!(range.middle(1e-4, 1e-2), Some(1e-3));
        assert_eq!(range.middle(1.00e-3, 1.01e-3), None);
    }
}
