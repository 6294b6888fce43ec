//! Limits on counts, and settings that need others.

use anyhow::{Result, bail};

/// The first key whose condition holds.
pub(super) fn first<'a>(keys: &[(&'a str, bool)]) -> Option<&'a str> {
    keys.iter().find(|(_, holds)| *holds).map(|(key, _)| *key)
}

/// Refuses counts of 0.
pub fn at_least_one(counts: &[(&str, u64)]) -> Result<()> {
    if let Some((key, _)) = counts.iter().find(|(_, value)| *value == 0) {
        bail!("`{key}` is 0 (it must be at least 1)");
    }
    Ok(())
}

/// Refuses counts above their limits.
pub fn at_most(counts: &[(&str, usize, usize)]) -> Result<()> {
    if let Some((key, value, limit)) = counts.iter().find(|(_, value, limit)| value > limit) {
        bail!("`{key}` is {value} (it must be at most {limit})");
    }
    Ok(())
}

/// Refuses numbers that are negative, not finite or above their limits.
pub fn from_zero(numbers: &[(&str, f64, f64)]) -> Result<()> {
    for (key, value, high) in numbers {
        if !(*value >= 0.0 && value <= high) {
            let limit = if *high == f64::MAX {
                "it must be finite, 0 or more".to_owned()
            } else {
                format!("it must be between 0 and {high}")
            };
            bail!("`{key}` is {value} ({limit})");
        }
    }
    Ok(())
}
