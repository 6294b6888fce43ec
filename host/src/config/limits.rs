//! Limits that several settings share, and settings that need others.

use anyhow::{Result, bail};

/// Longest prompt and completion in tokens, far above any model's limit.
pub(super) const LONGEST: usize = 1 << 24;

/// The first key whose condition holds.
pub(super) fn first<'a>(keys: &[(&'a str, bool)]) -> Option<&'a str> {
    keys.iter().find(|(_, holds)| *holds).map(|(key, _)| *key)
}

/// Refuses a count of 0.
pub(super) fn at_least_one(key: &str, count: usize) -> Result<()> {
    if count == 0 {
        bail!("`{key}` is 0 (it must be at least 1)");
    }
    Ok(())
}
