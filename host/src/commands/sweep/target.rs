//! The value of a swept setting whose rejection rate is nearest to a target.

use std::str::FromStr;

use anyhow::{Error, Result, anyhow};

use super::range::Range;
use crate::terminal::percent;

/// Largest number of times that a range is refined.
const LOOKS: usize = 4;

/// Number of rejected tokens among all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub rejected: u64,
    pub tokens: u64,
}

impl Count {
    /// Share of rejected tokens; 0 if there are no tokens.
    pub fn rate(self) -> f64 {
        self.rejected as f64 / self.tokens.max(1) as f64
    }

    pub(super) fn add(&mut self, rejected: u64, tokens: u64) {
        self.rejected += rejected;
        self.tokens += tokens;
    }
}

/// A rejection rate to aim at: `0.02` or `2%`.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// The rate, between 0 and 1, both excluded.
    pub rate: f64,
    text: String,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let rate = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse(),
        };
        let rate = rate.ok().filter(|rate| 0.0 < *rate && *rate < 1.0);
        let rate = rate.ok_or_else(|| {
            anyhow!(
                "`--target-rate {text}` is no share between 0 and 1 (write `0.02` or `2%` to \
                 reject one token in fifty)"
            )
        })?;
        Ok(Self {
            rate,
            text: text.to_owned(),
        })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Result of a search.
#[derive(Debug, PartialEq)]
pub struct Found {
    /// The value that rejects most without exceeding the target, and its count; `None` if every
    /// value exceeds it.
    pub best: Option<(f64, Count)>,
    /// Number of replays beyond those of the table.
    pub replays: usize,
    /// Why a better value may exist.
    pub remark: Option<String>,
}

/// A search for the value of a range with the largest rate that is not above the target.
///
/// Where the rate moves one way, the search halves the part in which it crosses the target. A rate
/// may turn, for example if a mask's state follows its decisions. Then the search takes a finer
/// table of the part beside the best value.
pub struct Search<'a> {
    pub target: &'a Target,
    /// Replays the batches at a value.
    pub count: &'a mut dyn FnMut(f64) -> Result<Count>,
}

impl Search<'_> {
    /// Searches between the values of a sweep of `range`, whose counts are `table`.
    pub fn run(mut self, range: &Range, table: &[(f64, Count)]) -> Result<Found> {
        let unsteady = format!(
            "the rate does not move one way with `{}`: there may be better values between these",
            range.key
        );
        let mut found = Found {
            best: self.best(table),
            replays: 0,
            remark: outside(range, table, self.target),
        };
        if found.remark.is_some() && is_steady(table) {
            return Ok(found);
        }
        let mut range = range.clone();
        let mut table = table.to_vec();
        for _ in 0..LOOKS {
            if is_steady(&table) {
                self.halve(&range, &table, &unsteady, &mut found)?;
                break;
            }
            found.remark = Some(unsteady.clone());
            let Some([best, worse]) = self.crossing_at_best(&table).filter(|_| table.len() > 2)
            else {
                break;
            };
            range = range.between_values(best.0, worse.0);
            table = self.finer(&range, [best, worse], &mut found)?;
            found.best = self.best(&table);
        }
        if found.best.is_none() {
            found.remark = found
                .remark
                .map(|remark| remark + ", none of which rejects that little");
        }
        Ok(found)
    }

    /// The value that rejects most without exceeding the target.
    fn best(&self, counts: &[(f64, Count)]) -> Option<(f64, Count)> {
        counts
            .iter()
            .copied()
            .filter(|(_, count)| self.is_within(*count))
            .max_by_key(|(_, count)| count.rejected)
    }

    fn is_within(&self, count: Count) -> bool {
        count.rate() <= self.target.rate
    }

    /// True if a single token more would exceed the target.
    fn is_nearest(&self, count: Count) -> bool {
        !self.is_within(Count {
            rejected: count.rejected + 1,
            ..count
        })
    }

    /// The best value and one beside it that exceeds the target.
    fn crossing_at_best(&self, table: &[(f64, Count)]) -> Option<[(f64, Count); 2]> {
        let best = self.best(table)?;
        let place = table.iter().position(|(value, _)| *value == best.0)?;
        let before = place.checked_sub(1).and_then(|before| table.get(before));
        let after = table.get(place + 1);
        [before, after]
            .into_iter()
            .flatten()
            .find(|(_, count)| !self.is_within(*count))
            .map(|worse| [best, *worse])
    }

    /// Replays the values of `range`, which lies between the two that are known.
    fn finer(
        &mut self,
        range: &Range,
        known: [(f64, Count); 2],
        found: &mut Found,
    ) -> Result<Vec<(f64, Count)>> {
        let mut table = Vec::new();
        for value in range.values() {
            let count = match known.iter().find(|(known, _)| *known == value) {
                Some((_, count)) => *count,
                None => {
                    found.replays += 1;
                    (self.count)(value)?
                }
            };
            table.push((value, count));
        }
        Ok(table)
    }

    /// Halves the part of a steady table in which the rate crosses the target.
    fn halve(
        &mut self,
        range: &Range,
        table: &[(f64, Count)],
        unsteady: &str,
        found: &mut Found,
    ) -> Result<()> {
        let crossing = table
            .windows(2)
            .find(|pair| self.is_within(pair[0].1) != self.is_within(pair[1].1));
        let Some(&[a, b]) = crossing else {
            return Ok(());
        };
        let (mut good, mut bad) = if self.is_within(a.1) { (a, b) } else { (b, a) };
        while !self.is_nearest(good.1)
            && let Some(value) = range.middle(good.0, bad.0)
        {
            let middle = (value, (self.count)(value)?);
            found.replays += 1;
            if !is_steady(&[good, middle, bad]) {
                found.remark = Some(unsteady.to_owned());
            }
            if self.is_within(middle.1) {
                good = middle;
            } else {
                bad = middle;
            }
        }
        found.best = Some(good);
        Ok(())
    }
}

/// True if the count never rises or never falls.
fn is_steady(counts: &[(f64, Count)]) -> bool {
    counts.is_sorted_by(|a, b| a.1.rejected <= b.1.rejected)
        || counts.is_sorted_by(|a, b| a.1.rejected >= b.1.rejected)
}

/// A remark if all values of a steady table are on one side of the target.
fn outside(range: &Range, table: &[(f64, Count)], target: &Target) -> Option<String> {
    let first = table.first()?;
    let last = table.last()?;
    let (least, most) = if first.1.rejected <= last.1.rejected {
        (first, last)
    } else {
        (last, first)
    };
    let is_below = most.1.rate() <= target.rate;
    if !is_below && least.1.rate() <= target.rate {
        return None;
    }
    let (reached, compared) = if is_below {
        (most, "more")
    } else {
        (least, "less")
    };
    let at_least = table.iter().filter(|(_, count)| *count == least.1).count();
    let hint = if is_below && least.1 == most.1 {
        "it makes no difference here"
    } else if !is_below && at_least > 1 {
        "other limits reject that much: loosen those"
    } else {
        range.advice
    };
    Some(format!(
        "no value of `{}` from {} to {} rejects {compared} than {}, at {} ({hint})",
        range.key,
        range.text(first.0),
        range.text(last.0),
        percent(reached.1.rate()),
        range.text(reached.0),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a sweep in which `rate(value)` is the rate at a value.
    fn found(range: &str, target: &str, rate: impl Fn(f64) -> f64) -> Found {
        let range: Range = range.parse().unwrap();
        let count = |value| Count {
            rejected: (1e6 * rate(value)) as u64,
            tokens: 1_000_000,
        };
        let counts: Vec<_> = range
            .values()
            .into_iter()
            .map(|value| (value, count(value)))
            .collect();
        Search {
            target: &target.parse().unwrap(),
            count: &mut |value| Ok(count(value)),
        }
        .run(&range, &counts)
        .unwrap()
    }

    #[test]
    fn a_steady_rate_is_met_from_below_whichever_way_it_goes() {
        let falling = found("mask.0.a=1e-6..1e-2", "2%", |x| (1e-5 / x).min(1.0));
        let (value, count) = falling.best.unwrap();
        assert!(
            (5e-4..5.02e-4).contains(&value) && count.rate() <= 0.02,
            "{falling:?}"
        );
        assert!(falling.remark.is_none() && (1..20).contains(&falling.replays));
        let rising = found("mask.0.a=-1.0..1.0", "0.3", |x| (x + 1.0) / 2.0);
        assert!(
            (-0.41..=-0.4).contains(&rising.best.unwrap().0),
            "{rising:?}"
        );
    }

    #[test]
    fn a_rate_that_turns_is_searched_beside_the_best_value() {
        let turning = found("mask.0.a=-1.0..1.0:5", "30%", |x| x * x);
        let (value, count) = turning.best.unwrap();
        assert!(
            (0.54..=0.548).contains(&value.abs()) && count.rate() <= 0.3,
            "{turning:?}"
        );
        assert!(turning.replays > 0);
        assert!(
            turning
                .remark
                .unwrap()
                .starts_with("the rate does not move one way with `mask.0.a`")
        );
        // The search meets a bump between two values of the table.
        let bump = found("mask.0.a=0..1.0:2", "40%", |x| {
            if x > 0.3 && x < 0.6 { 0.9 } else { 0.5 * x }
        });
        assert!(bump.remark.is_some() && bump.best.unwrap().1.rate() <= 0.4);
        // The rate falls, except for a bump at the low end.
        let falling = found("mask.0.a=1e-6..1e-2", "2%", |x| {
            (1e-5 / x).min(if x < 2e-6 { 0.9 } else { 1.0 })
        });
        let (value, _) = falling.best.unwrap();
        assert!((5e-4..5.02e-4).contains(&value), "{value}");
        assert!(falling.remark.is_some());
    }

    #[test]
    fn a_turning_rate_above_the_target_has_no_best_value() {
        let found = found("mask.0.a=1..5", "2%", |x| 0.1 + (x - 3.0).abs() / 100.0);
        assert_eq!(found.best, None);
        assert!(
            found
                .remark
                .unwrap()
                .ends_with("none of which rejects that little")
        );
    }

    #[test]
    fn a_target_outside_says_what_was_reached() {
        type Rate = fn(f64) -> f64;
        let rates: [(&str, Rate, &str); 4] = [
            (
                "1%",
                |x| (0.3 / x).max(0.04),
                "less than 4.00%, at 10.0 (widen the range)",
            ),
            (
                "1%",
                |x| (0.03 / x).max(0.04),
                "less than 4.00%, at 10.0 (other limits reject that much: loosen those)",
            ),
            (
                "90%",
                |x| 0.03 / x,
                "more than 30.00%, at 0.1 (widen the range)",
            ),
            (
                "90%",
                |_| 0.1,
                "more than 10.00%, at 10.0 (it makes no difference here)",
            ),
        ];
        for (target, rate, reached) in rates {
            let remark = found("mask.0.a=0.1..10.0:3", target, rate).remark.unwrap();
            assert_eq!(
                remark,
                format!("no value of `mask.0.a` from 0.1 to 10.0 rejects {reached}")
            );
        }
        assert_eq!(found("mask.0.a=0.1..10.0:3", "1%", |_| 0.1).best, None);
    }

    #[test]
    fn targets_are_shares() {
        let rate = |text: &str| text.parse::<Target>().map(|target| target.rate).ok();
        assert_eq!(
            [rate("2%"), rate("0.02"), rate("2.5 %")],
            [Some(0.02), Some(0.02), Some(0.025)]
        );
        assert!(
            ["0", "1", "100%", "-1%", "much", "NaN", ""]
                .iter()
                .all(|text| rate(text).is_none())
        );
    }
}
