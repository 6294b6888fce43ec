//! Plugins and settings that a run was made with, and from which step on: `provenance.json` in its directory.

use std::path::Path;

use anyhow::{Context, Result, bail};
use capo_loader::{LoadedPlugin, owner, seal};
use serde::{Deserialize, Serialize};

use super::CONFIG_FILE;

/// The file's name, in a run's directory.
pub const FILE: &str = "provenance.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Provenance {
    /// Never empty, by steps.
    periods: Vec<Period>,
}

/// Plugins and settings of a stretch of steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// Steps that were done before.
    pub from_step: u64,
    /// The plugins that were loaded.
    pub plugins: Vec<LoadedPlugin>,
    /// All settings, as TOML.
    pub settings: String,
}

/// The plugins that the run in `dir` used last.
pub fn latest(dir: &Path) -> Result<Vec<LoadedPlugin>> {
    Ok(read(dir)?.pop().map(|period| period.plugins).unwrap_or_default())
}

/// The settings that the run in `dir` has had since before step `step` was done: those that its checkpoint was made with.
pub fn settings_at(dir: &Path, step: u64) -> Result<String> {
    let periods = read(dir)?;
    let before = periods.into_iter().rev().find(|period| period.from_step <= step);
    before
        .map(|period| period.settings)
        .with_context(|| format!("`{}` knows nothing of step {step}", dir.join(FILE).display()))
}

/// Refuses to load `plugins`, which the run in `dir` names, where somebody else may have written them there.
pub fn check_owner(dir: &Path, plugins: &[LoadedPlugin]) -> Result<()> {
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
pub fn start(dir: &Path, plugins: Vec<LoadedPlugin>, settings: String) -> Result<()> {
    write(dir, vec![Period { from_step: 0, plugins, settings }])
}

/// Writes down what the run in `dir` goes on with after `step`; nothing where that has not changed.
pub fn go_on(dir: &Path, step: u64, plugins: Vec<LoadedPlugin>, settings: String) -> Result<()> {
    let before = read(dir)?;
    let mut periods = before.clone();
    // Steps after this one are discarded, and so are their periods.
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
