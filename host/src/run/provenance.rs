//! Which plugins a run was made with, and from which step on: `plugins.json` in its directory.

use std::path::Path;

use anyhow::{Context, Result};
use capo_loader::{PluginRecord, files};
use serde::{Deserialize, Serialize};

/// The file that names a run's plugins, in its directory.
const FILE: &str = "plugins.json";

/// The plugins of a stretch of steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Period {
    /// Steps that were done before.
    from_step: u64,
    plugins: Vec<PluginRecord>,
}

/// The plugins that the run in `dir` used last.
///
/// # Errors
///
/// When the file is missing or damaged.
pub fn latest(dir: &Path) -> Result<Vec<PluginRecord>> {
    Ok(read(dir)?.pop().map(|period| period.plugins).unwrap_or_default())
}

/// Writes down what a new run in `dir` starts with.
///
/// # Errors
///
/// When the file cannot be written.
pub fn start(dir: &Path, plugins: Vec<PluginRecord>) -> Result<()> {
    write(dir, &[Period { from_step: 0, plugins }])
}

/// Writes down what the run in `dir` goes on with after `step`; nothing where that has not changed.
///
/// # Errors
///
/// When the file is missing or damaged, or cannot be written.
pub fn go_on(dir: &Path, step: u64, plugins: Vec<PluginRecord>) -> Result<()> {
    let mut periods = read(dir)?;
    if periods.last().is_some_and(|last| last.plugins == plugins) {
        return Ok(());
    }
    // What was done after this step is gone.
    periods.retain(|period| period.from_step < step);
    periods.push(Period { from_step: step, plugins });
    write(dir, &periods)
}

fn read(dir: &Path) -> Result<Vec<Period>> {
    let path = dir.join(FILE);
    serde_json::from_slice(&files::read(&path)?).with_context(|| format!("`{}` is damaged", path.display()))
}

fn write(dir: &Path, periods: &[Period]) -> Result<()> {
    files::write_atomic(&dir.join(FILE), &serde_json::to_vec_pretty(periods)?)
}
