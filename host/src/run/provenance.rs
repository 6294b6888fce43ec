//! What a run was made with, plugins and settings, and from which step on: `provenance.json` in its directory.

use std::path::Path;

use anyhow::{Context, Result};
use capo_loader::{PluginRecord, seal};
use serde::{Deserialize, Serialize};

/// The file's name, in a run's directory.
pub const FILE: &str = "provenance.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Provenance {
    /// Never empty, by steps.
    periods: Vec<Period>,
}

/// What a stretch of steps was made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// Steps that were done before.
    pub from_step: u64,
    /// The plugins that were loaded.
    pub plugins: Vec<PluginRecord>,
    /// All settings, as TOML.
    pub settings: String,
}

/// The plugins that the run in `dir` used last.
///
/// # Errors
///
/// When the file is missing or damaged.
pub fn latest(dir: &Path) -> Result<Vec<PluginRecord>> {
    Ok(read(dir)?.pop().map(|period| period.plugins).unwrap_or_default())
}

/// The settings that the run in `dir` has had since before step `step` was done: those that its checkpoint was made with.
///
/// # Errors
///
/// When the file is missing or damaged.
pub fn settings_at(dir: &Path, step: u64) -> Result<String> {
    let periods = read(dir)?;
    let before = periods.into_iter().rev().find(|period| period.from_step <= step);
    before
        .map(|period| period.settings)
        .with_context(|| format!("`{}` knows nothing of step {step}", dir.join(FILE).display()))
}

/// Writes down what a new run in `dir` starts with.
///
/// # Errors
///
/// When the file cannot be written.
pub fn start(dir: &Path, plugins: Vec<PluginRecord>, settings: String) -> Result<()> {
    write(dir, vec![Period { from_step: 0, plugins, settings }])
}

/// Writes down what the run in `dir` goes on with after `step`; nothing where that has not changed.
///
/// # Errors
///
/// When the file is missing or damaged, or cannot be written.
pub fn go_on(dir: &Path, step: u64, plugins: Vec<PluginRecord>, settings: String) -> Result<()> {
    let before = read(dir)?;
    let mut periods = before.clone();
    // What was done after this step is gone.
    periods.retain(|period| period.from_step < step);
    if periods.last().is_none_or(|last| last.plugins != plugins || last.settings != settings) {
        periods.push(Period { from_step: step, plugins, settings });
    }
    if periods == before { Ok(()) } else { write(dir, periods) }
}

fn read(dir: &Path) -> Result<Vec<Period>> {
    Ok(seal::read::<Provenance>(&dir.join(FILE))?.periods)
}

fn write(dir: &Path, periods: Vec<Period>) -> Result<()> {
    seal::write(&dir.join(FILE), &Provenance { periods })
}
