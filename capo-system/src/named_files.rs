//! Files that are read by name, wherever they lie.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::files;

/// Files with names, such as those of a model: in a folder, in memory, or parts of another file.
pub trait NamedFiles {
    /// True if the file `name` exists, even if it cannot be read.
    fn contains(&self, name: &str) -> bool;

    /// The whole contents of the file `name`; a missing or unreadable file is an error that names
    /// its path.
    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>>;

    /// The path of the file `name` in backticks, for messages.
    fn describe(&self, name: &str) -> String;

    /// The JSON in the file `name`, or null if the file is missing. Invalid JSON is an error that
    /// names the path.
    fn json(&self, name: &str) -> Result<Value> {
        if !self.contains(name) {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.read(name)?)
            .with_context(|| format!("{} is not valid JSON", self.describe(name)))
    }
}

/// The files of a folder.
impl NamedFiles for PathBuf {
    fn contains(&self, name: &str) -> bool {
        self.join(name).exists()
    }

    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        files::read(&self.join(name)).map(Cow::Owned)
    }

    fn describe(&self, name: &str) -> String {
        format!("`{}`", self.join(name).display())
    }
}
