//! Finds, for a target rate, the value of a mask's own key that rejects most without exceeding the
//! target.

use anyhow::Result;

use super::super::sweep::{Count, Found, Range, Search, Target};
use super::alone::Replays;
use super::contender::Contender;

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
    let mut count = |value: f64| {
        let contender = contender.with(&key, range.toml(value));
        Ok(replays.run(&contender)?.count())
    };
    let mut table = Vec::new();
    for value in range.values() {
        table.push((value, count(value)?));
    }
    let count = &mut count;
    let Found { best, remark, .. } = Search { target, count }.run(&range, &table)?;
    let least = table.iter().min_by_key(|(_, count)| count.rejected);
    let Some((value, Count { rejected, .. })) = best.or(least.copied()) else {
        return Ok((contender, Setting::NoKey));
    };
    let contender = contender.with(&key, range.toml(value));
    let (quiet, apart) = replays.run_without_rounding(&contender)?;
    let idle = match rejected {
        0 => !apart.moved && replays.compares_policies(&contender)?,
        // A state that follows decisions may change them for a few tokens.
        _ => 2 * quiet.count().rejected < rejected,
    };
    if idle {
        let remark = format!(
            "it has nothing to act on: current and earlier log-probabilities differ by rounding, \
             {:.1e} nats at most (record batches of a policy that has moved on, as with \
             `train.num_iterations` above 1)",
            apart.rounding
        );
        return Ok((contender, Setting::Nothing { key, remark }));
    }
    Ok((
        contender,
        Setting::Found {
            key,
            value: range.text(value),
            remark,
        },
    ))
}
