//! Which plugins a run was made with, and from which step on: `plugins.json` in its directory.

use std::path::Path;

use anyhow::{Context, Result, bail};
use capo_loader::{PluginRecord, files, owner};
use serde::{Deserialize, Serialize};

use super::CONFIG_FILE;

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

/// Refuses to load `plugins`, which the run in `dir` names, where somebody else may have written them there.
///
/// # Errors
///
/// Who that may be, and what they name.
pub fn check_owner(dir: &Path, plugins: &[PluginRecord]) -> Result<()> {
    for path in [dir.to_owned(), dir.join(FILE), dir.join(CONFIG_FILE)] {
        let shown = path.display();
        let metadata = std::fs::metadata(&path).with_context(|| format!("cannot examine `{shown}`"))?;
        if let Some(stranger) = owner::stranger(&metadata) {
            let named =
                plugins.iter().map(|plugin| format!("`{}`", plugin.path.display())).collect::<Vec<_>>().join(", ");
            bail!(
                "the run is not yours alone: `{shown}` may be changed by {stranger}, and a resume would load {named}, which the run names (give the plugins that you trust with `--plugin`, or take these with `--trust-run`)"
            );
        }
    }
    Ok(())
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
