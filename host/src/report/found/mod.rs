//! Reads a run from its directory, even while a process is training it: settings, metrics and
//! progress.

mod completions;
mod diagnosis;
mod held_out;
mod rates;
mod summary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use capo_system::files;
use capo_system::lock::{self, is_at_work};
use toml::Table;

pub use crate::metrics::lines::{Column, Lines};
use crate::run::{CONFIG_FILE, METRICS_FILE, settings};
use crate::terminal::sentence;
use crate::warnings::Settings;
pub use completions::{Row, completions};
pub use diagnosis::{Diagnosis, diagnose};
pub use held_out::{HeldOut, Measured};
pub use rates::{TAKEN_RATE, add_taken_rates, taken_share};
pub use summary::{REWARDS, Summary};

/// A run in a directory. Reading it changes nothing.
#[derive(Debug)]
pub struct FoundRun {
    /// Path of the directory, as it was given.
    pub dir: PathBuf,
    /// Name of the directory, without its parents.
    pub name: String,
    /// The settings that checks read.
    pub checked: Settings,
    /// Every setting by its dotted key, with the value as in TOML.
    pub settings: BTreeMap<String, String>,
    /// Contents of `metrics.jsonl`.
    pub lines: Lines,
    /// True if a process is training the run.
    pub at_work: bool,
    /// Messages to the user about parts that cannot be read.
    pub remarks: Vec<String>,
}

impl FoundRun {
    /// Reads the run in `dir`. Damaged parts become remarks.
    pub fn read(dir: &Path) -> Result<Self> {
        if !Self::is_run(dir) {
            bail!(
                "`{}` is not a run directory: it has no `{CONFIG_FILE}` (give the folder that \
                 `host train` printed)",
                dir.display()
            );
        }
        let mut remarks = Vec::new();
        let table = files::read(&dir.join(CONFIG_FILE))
            .and_then(|bytes| settings::read(&String::from_utf8(bytes)?));
        let table = table.unwrap_or_else(|error| {
            remarks.push(format!(
                "`{CONFIG_FILE}` cannot be used: {}",
                sentence(&error, false)
            ));
            Table::new()
        });
        let lines = Lines::read(&dir.join(METRICS_FILE)).unwrap_or_else(|error| {
            remarks.push(sentence(&error, false));
            Lines::default()
        });
        let name = dir
            .canonicalize()
            .ok()
            .and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
        let at_work = is_at_work(dir).unwrap_or_else(|error| {
            remarks.push(format!("`{}`: {error}", lock::FILE));
            false
        });
        remarks.extend(
            lines
                .remark(at_work)
                .map(|remark| format!("`{METRICS_FILE}`: {remark}")),
        );
        Ok(Self {
            name: name.unwrap_or_else(|| dir.display().to_string()),
            dir: dir.to_owned(),
            settings: settings::keys(&table),
            checked: table.try_into().unwrap_or_default(),
            lines,
            at_work,
            remarks,
        })
    }

    /// A run of that name without a directory.
    #[cfg(test)]
    pub(super) fn of(name: &str, settings: &[(&str, &str)], lines: Lines) -> Self {
        let settings = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Self {
            dir: name.into(),
            name: name.into(),
            checked: Settings::default(),
            settings,
            lines,
            at_work: false,
            remarks: Vec::new(),
        }
    }

    /// True if `dir` looks like a run's directory.
    pub fn is_run(dir: &Path) -> bool {
        dir.join(CONFIG_FILE).is_file()
    }

    /// Value of the setting `key`; a string has no quotes.
    pub fn setting(&self, key: &str) -> Option<String> {
        let shown = self.settings.get(key)?;
        let parsed = format!("v = {shown}").parse::<Table>().ok();
        let text = parsed.and_then(|table| Some(table.get("v")?.as_str()?.to_owned()));
        Some(text.unwrap_or_else(|| shown.clone()))
    }

    /// Value of the setting `key` as a whole number.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.settings.get(key)?.parse().ok()
    }
}
