//! A component's table in a config, as it arrives over the ABI.

use serde_json::{Map, Value};

use crate::PluginError;

/// The keys and values that a user gave to a component.
#[derive(Debug)]
pub struct Table(Map<String, Value>);

impl Table {
    /// The table in `json`.
    ///
    /// # Errors
    ///
    /// When the text is not an object of JSON.
    pub fn of_json(json: &str) -> Result<Self, PluginError> {
        serde_json::from_str(json)
            .map(Self)
            .map_err(|error| PluginError::config(format!("the table is not JSON: {error}")))
    }

    /// The value of a key, if the user gave it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Refuses a key that is not one of `known`.
    ///
    /// # Errors
    ///
    /// The first unknown key.
    pub(crate) fn check_known(&self, known: &[&str]) -> Result<(), PluginError> {
        match self.0.keys().find(|key| !known.contains(&key.as_str())) {
            Some(unknown) => Err(PluginError::config(unknown_key(unknown, known))),
            None => Ok(()),
        }
    }
}

/// Error message about an unknown key.
pub fn unknown_key(typed: &str, known: &[&str]) -> String {
    match (nearest(typed, known.iter().copied()), known) {
        (Some(near), _) => format!("unknown key `{typed}` (did you mean `{near}`?)"),
        (None, []) => format!("unknown key `{typed}` (it has no keys)"),
        (None, known) => format!("unknown key `{typed}` (known: `{}`)", known.join("`, `")),
    }
}

/// The candidate nearest to `typed`, if it is near enough to be a typing error.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(typed, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
