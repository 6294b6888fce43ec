//! Finds, for a target rate, the value of a mask's own key that rejects most without exceeding the
//! target.

use anyhow::Result;

use super::super::sweep::{Count, Range, Target, search};
use super::alone::Replays;
use super::contender::Contender;

/// Largest number of times that a range is refined.
const LOOKS: usize = 4;

/// Origin of the value of a mask's key.
pub enum Setting {
    /// The mask's own configuration: no value was searched.
    Own,
    NoKey,
    /// The user's value under `key`, as text in a config.
    Given {
        key: String,
        value: String,
    },
    /// The search's value under `key`, as text in a config, and why the search is incomplete.
    Found {
        key: String,
        value: String,
        remark: Option<String>,
    },
    /// No value for `key`: with the value that the search found, the mask would act on the noise
    /// that `remark` names.
    Nothing {
        key: String,
        remark: String,
    },
}

/// Returns the mask as it is compared. With a target, its open key gets the value that rejects most
/// without exceeding the target. If every value exceeds it, the key gets the value that rejects
/// least.
pub fn decide(
    contender: Contender,
    target: Option<&Target>,
    replays: &mut Replays<'_>,
) -> Result<(Contender, Setting)> {
    let Some(target) = target else {
        return Ok((contender, Setting::Own));
    };
    let Some((key, ends)) = contender.key.clone() else {
        return Ok((contender, Setting::NoKey));
    };
    if let Some(value) = contender.config.table.get(&key) {
        let setting = Setting::Given {
            value: value.to_string(),
            key,
        };
        return Ok((contender, setting));
    }
    let range = Range::of_author(&key, ends);
    let at = |value: f64| contender.with(&key, range.toml(value));
    let mut count = |value: f64| replays.run(&at(value)).map(|rejected| rejected.count());
    let (value, remark) = nearest(&range, target, &mut count)?;
    let (rejected, contender) = (count(value)?.rejected, at(value));
    let text = range.text(value);
    let (quiet, apart) = replays.run_without_rounding(&contender)?;
    let idle = match rejected {
        0 => !apart.moved && replays.compares_policies(&contender)?,
        // A state that follows decisions may change them for a few tokens.
        _ => 2 * quiet.count().rejected < rejected,
    };
    if idle {
        let remark = format!(
            "it has nothing to act on: current and earlier log-probabilities differ by rounding, {:.1e} nats at most (record batches of a policy that has moved on, as with `train.num_iterations` above 1)",
            apart.rounding
        );
        return Ok((contender, Setting::Nothing { key, remark }));
    }
    Ok((
        contender,
        Setting::Found {
            key,
            value: text,
            remark,
        },
    ))
}

/// The value that rejects most without exceeding the target, else the value that rejects least. The
/// text says why a better one may exist.
///
/// A rate may not be monotonic over the whole range, for example if a mask's state follows its
/// decisions. The range is then refined where the rate crosses the target.
fn nearest(
    range: &Range,
    target: &Target,
    count: &mut dyn FnMut(f64) -> Result<Count>,
) -> Result<(f64, Option<String>)> {
    let (mut range, mut remark, mut best) = (range.clone(), None, f64::NAN);
    for _ in 0..LOOKS {
        let counts = range
            .values()
            .into_iter()
            .map(|value| Ok((value, count(value)?)))
            .collect::<Result<Vec<_>>>()?;
        let found = search(&range, &counts, target, count)?;
        let is_open = found.remark.is_some();
        remark = remark.or(found.remark);
        let Some((value, _)) = found.best else {
            let least = counts.iter().min_by_key(|(_, count)| count.rejected);
            return Ok((least.map_or(best, |(value, _)| *value), remark));
        };
        best = value;
        let Some(worse) = beside(&counts, best, target).filter(|_| is_open && counts.len() > 2)
        else {
            break;
        };
        range = range.between_values(best, worse);
    }
    Ok((best, remark))
}

/// The value next to `best` that exceeds the target, if there is one.
fn beside(counts: &[(f64, Count)], best: f64, target: &Target) -> Option<f64> {
    let place = counts.iter().position(|(value, _)| *value == best)?;
    let beside = [place.checked_sub(1), place.checked_add(1)]
        .into_iter()
        .flatten()
        .filter_map(|at| counts.get(at));
    beside
        .into_iter()
        .find(|(_, count)| count.rate() > target.rate)
        .map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value that the search finds, and its remark, if `rate(value)` is the rejection rate at a
    /// value.
    fn found(range: &str, target: &str, rate: impl Fn(f64) -> f64) -> (f64, Option<String>) {
        let mut count = |value| {
            Ok(Count {
                rejected: (1e6 * rate(value)) as u64,
                tokens: 1_000_000,
            })
        };
        nearest(
            &range.parse().unwrap(),
            &target.parse().unwrap(),
            &mut count,
        )
        .unwrap()
    }

    #[test]
    fn a_steady_rate_is_met_from_below() {
        let (value, remark) = found("mask.0.a=1e-6..1e-2", "2%", |x| (1e-5 / x).min(1.0));
        assert!(
            (5e-4..5.02e-4).contains(&value) && remark.is_none(),
            "{value} {remark:?}"
        );
    }

    #[test]
    fn a_rate_that_turns_far_from_the_target_is_met_too_and_said() {
        // The rate falls, except for a bump at the low end.
        let (value, remark) = found("mask.0.a=1e-6..1e-2", "2%", |x| {
            (1e-5 / x).min(if x < 2e-6 { 0.9 } else { 1.0 })
        });
        assert!((5e-4..5.02e-4).contains(&value), "{value}");
        assert!(
            remark
                .unwrap()
                .starts_with("the rate does not move one way")
        );
    }

    #[test]
    fn where_all_exceed_it_the_least_is_taken() {
        let (value, remark) = found("mask.0.a=1..5", "2%", |x| 0.1 + (x - 3.0).abs() / 100.0);
        assert_eq!(value, 3.0);
        assert!(
            remark
                .unwrap()
                .ends_with("none of which rejects that little")
        );
    }
}
