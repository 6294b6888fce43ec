//! Checks of keys against each other.

use capo_plugin::prelude::*;

/// Refuses two limits, each with its key, of which the first is above the second.
pub(crate) fn ordered(limits: [(&str, f32); 2]) -> Result<(), PluginError> {
    let [(low_key, low), (high_key, high)] = limits;
    if low <= high {
        return Ok(());
    }
    Err(PluginError::config(format!(
        "`{low_key}` is {low}, above `{high_key}`, {high} (no token would be kept)"
    )))
}
