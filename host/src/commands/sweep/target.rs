//! The value of a swept setting whose rejection rate is nearest to a target.

use std::str::FromStr;

use anyhow::{Error, Result, anyhow};

use super::range::Range;
use crate::terminal::percent;

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
                "`--target-rate {text}` is no share between 0 and 1 (write `0.02` or `2%` to reject one token in fifty)"
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

#[derive(Debug, PartialEq)]
pub struct Found {
    /// The value that rejects most without exceeding the target, and its count; `None` if every
    /// value exceeds it.
    pub best: Option<(f64, Count)>,
    /// Number of replays beyond those of the table.
    pub replays: usize,
    /// Why the search is incomplete.
    pub remark: Option<String>,
}

/// Searches between the values of a sweep, `counts`, for the value with the largest rate that is
/// not above the target.
pub fn search(
    range: &Range,
    counts: &[(f64, Count)],
    target: &Target,
    count: &mut dyn FnMut(f64) -> Result<Count>,
) -> Result<Found> {
    let key = &range.key;
    let best = |counts: &[(f64, Count)]| {
        counts
            .iter()
            .copied()
            .filter(|(_, count)| count.rate() <= target.rate)
            .max_by_key(|(_, count)| count.rejected)
    };
    let unsteady = format!(
        "the rate does not move one way with `{key}`: there may be better values between these"
    );
    if !steady(counts) {
        let best = best(counts);
        let remark = if best.is_some() {
            unsteady
        } else {
            unsteady + ", none of which rejects that little"
        };
        return Ok(Found {
            best,
            replays: 0,
            remark: Some(remark),
        });
    }
    if let Some(remark) = outside(range, counts, target) {
        return Ok(Found {
            best: best(counts),
            replays: 0,
            remark: Some(remark),
        });
    }
    let within = |count: Count| count.rate() <= target.rate;
    let crossing = counts
        .windows(2)
        .find(|pair| within(pair[0].1) != within(pair[1].1));
    let Some(&[a, b]) = crossing else {
        return Ok(Found {
            best: best(counts),
            replays: 0,
            remark: None,
        });
    };
    let (mut good, mut bad) = if within(a.1) { (a, b) } else { (b, a) };
    let (mut replays, mut remark) = (0, None);
    let nearest = |count: Count| {
        !within(Count {
            rejected: count.rejected + 1,
            ..count
        })
    };
    while let Some(value) = range.middle(good.0, bad.0).filter(|_| !nearest(good.1)) {
        let middle = (value, count(value)?);
        replays += 1;
        if !steady(&[good, middle, bad]) {
            remark = Some(unsteady.clone());
        }
        *if within(middle.1) {
            &mut good
        } else {
            &mut bad
        } = middle;
    }
    Ok(Found {
        best: Some(good),
        replays,
        remark,
    })
}

/// True if the count never rises or never falls.
fn steady(counts: &[(f64, Count)]) -> bool {
    counts.is_sorted_by(|a, b| a.1.rejected <= b.1.rejected)
        || counts.is_sorted_by(|a, b| a.1.rejected >= b.1.rejected)
}

/// A remark if all values of a monotonic sweep are on one side of the target.
fn outside(range: &Range, counts: &[(f64, Count)], target: &Target) -> Option<String> {
    let (first, last) = (counts.first()?, counts.last()?);
    let (least, most) = if first.1.rejected <= last.1.rejected {
        (first, last)
    } else {
        (last, first)
    };
    let (key, low, high) = (&range.key, range.text(first.0), range.text(last.0));
    let at = |(value, count): &(f64, Count)| {
        format!("{}, at {}", percent(count.rate()), range.text(*value))
    };
    if most.1.rate() <= target.rate {
        let hint = if least.1 == most.1 {
            "it makes no difference here"
        } else {
            range.advice
        };
        return Some(format!(
            "no value of `{key}` from {low} to {high} rejects more than {} ({hint})",
            at(most)
        ));
    }
    if least.1.rate() <= target.rate {
        return None;
    }
    let floor = counts.iter().filter(|(_, count)| *count == least.1).count();
    let hint = if floor > 1 {
        "other limits reject that much: loosen those"
    } else {
        range.advice
    };
    Some(format!(
        "no value of `{key}` from {low} to {high} rejects less than {} ({hint})",
        at(least)
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
        search(&range, &counts, &target.parse().unwrap(), &mut |value| {
            Ok(count(value))
        })
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
    fn a_rate_that_turns_is_not_searched() {
        let turning = found("mask.0.a=-1.0..1.0:5", "30%", |x| x * x);
        assert_eq!(
            (
                turning.best.map(|(value, count)| (value, count.rate())),
                turning.replays
            ),
            (Some((0.5, 0.25)), 0)
        );
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
