//! Error messages for values that no component accepts.

use capo_plugin::PluginError;

/// Refuses a number that is negative or not finite.
pub fn not_negative(key: &str, value: f32) -> Result<(), PluginError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(PluginError::config(format!(
        "`{key}` is {value} (use 0 or more)"
    )))
}

/// Refuses a number that is not above 0, or not finite.
pub fn positive(key: &str, value: f32) -> Result<(), PluginError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(PluginError::config(format!(
        "`{key}` is {value} (use a number above 0)"
    )))
}
