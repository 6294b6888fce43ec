//! With a target rate: the value of a mask's own key that rejects most without exceeding it.

use anyhow::Result;

use super::super::sweep::{Range, Target, search};
use super::alone::Replays;
use super::contender::Contender;

/// Where the value of a mask's key comes from.
pub enum Setting {
    /// Nothing was searched.
    Own,
    /// No key of the mask is one to search.
    NoKey,
    /// The user's value under `key`.
    Given {
        /// Name of the key.
        key: String,
        /// As it is written in a config.
        value: String,
    },
    /// The search's value under `key`.
    Found {
        /// Name of the key.
        key: String,
        /// As it is written in a config.
        value: String,
        /// Why the search is incomplete.
        remark: Option<String>,
    },
}

/// The mask as it is compared: with a target, its open key has the value that rejects most without exceeding it; where every value
/// exceeds it, the one that rejects least.
///
/// # Errors
///
/// Those of a replay.
pub fn decide(
    contender: Contender,
    target: Option<&Target>,
    replays: &mut Replays<'_>,
) -> Result<(Contender, Setting)> {
    let Some(target) = target else { return Ok((contender, Setting::Own)) };
    let Some(key) = contender.key.clone() else { return Ok((contender, Setting::NoKey)) };
    if let Some(value) = contender.config.table.get(key.key.as_str()) {
        let setting = Setting::Given { key: key.key.to_string(), value: value.to_string() };
        return Ok((contender, setting));
    }
    let range = Range::from(&key);
    let at = |value: f64| contender.with(&key.key, range.toml(value));
    let mut count = |value: f64| replays.run(&at(value)).map(|rejected| rejected.count());
    let counts = range.values().into_iter().map(|value| Ok((value, count(value)?))).collect::<Result<Vec<_>>>()?;
    let found = search(&range, &counts, target, &mut count)?;
    let least = counts.iter().min_by_key(|(_, count)| count.rejected);
    let value = found.best.or(least.copied()).map_or(key.low, |(value, _)| value);
    let setting = Setting::Found { key: key.key.to_string(), value: range.text(value), remark: found.remark };
    Ok((at(value), setting))
}
