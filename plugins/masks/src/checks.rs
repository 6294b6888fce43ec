//! Error messages for keys out of range.

use capo_plugin::prelude::*;

fn check(holds: bool, sentence: String) -> Result<(), PluginError> {
    if holds {
        Ok(())
    } else {
        Err(PluginError::config(sentence))
    }
}

/// Refuses a bound that is not a number of at least 0.
pub(crate) fn bound(name: &str, value: f32) -> Result<(), PluginError> {
    check(
        value >= 0.0,
        format!("`{name}` is {value} (it must be 0 or more)"),
    )
}

/// Refuses a divisor that is not finite and above 0.
pub(crate) fn positive(name: &str, value: f32) -> Result<(), PluginError> {
    check(
        value > 0.0 && value.is_finite(),
        format!("`{name}` is {value} (it must be finite and above 0)"),
    )
}

/// Refuses a fraction outside 0 to 1.
pub(crate) fn share(name: &str, value: f64) -> Result<(), PluginError> {
    check(
        (0.0..=1.0).contains(&value),
        format!("`{name}` is {value} (use 0 to 1)"),
    )
}

/// Refuses a range whose lower end is above its upper end.
pub(crate) fn range(
    (low_name, low): (&str, f32),
    (high_name, high): (&str, f32),
) -> Result<(), PluginError> {
    check(
        low <= high,
        format!("`{low_name}` is {low}, above `{high_name}`, {high} (no token would be kept)"),
    )
}
