//! Errors of parsers in the words of the person who wrote the file.

use std::error::Error;

use capo_plugin::plain;

/// The sentence of `error`, in plain words if a parser of JSON or TOML wrote it.
pub fn cause(error: &(dyn Error + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<serde_json::Error>() {
        return plain::json(error);
    }
    error
        .downcast_ref::<toml::de::Error>()
        .map_or_else(|| error.to_string(), plain::toml)
}
