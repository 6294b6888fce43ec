//! The file `provenance.json` in a run's directory: the plugins and settings with which the run was
//! made, and the steps for which each was used.

use std::path::Path;

use anyhow::{Context, Result, bail};
use capo_loader::LoadedPlugin;
use capo_loader::owner::Access;
use capo_system::seal;
use serde::{Deserialize, Serialize};

use super::CONFIG_FILE;

/// Name of the file in a run's directory.
pub const FILE: &str = "provenance.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Provenance {
    /// Periods in the order of their steps; never empty.
    periods: Vec<Period>,
}

/// Plugins and settings of consecutive steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// Number of steps done before the period.
    pub from_step: u64,
    pub plugins: Vec<LoadedPlugin>,
    /// All settings, as TOML.
    pub settings: String,
}

/// The plugins that the run in `dir` used most recently.
pub fn latest(dir: &Path) -> Result<Vec<LoadedPlugin>> {
    Ok(read(dir)?
        .pop()
        .map(|period| period.plugins)
        .unwrap_or_default())
}

/// The settings of the run in `dir` when the checkpoint of `step` was made.
pub fn settings_at(dir: &Path, step: u64) -> Result<String> {
    let periods = read(dir)?;
    // A period that begins at a checkpoint did not make that checkpoint.
    let before = periods
        .into_iter()
        .rev()
        .find(|period| period.from_step < step.max(1));
    before.map(|period| period.settings).with_context(|| {
        format!(
            "`{}` knows nothing of step {step}",
            dir.join(FILE).display()
        )
    })
}

/// Refuses to use what the run in `dir` names if another user may have changed the files that name
/// it. `what` says what would be used, and how to use it anyway.
pub fn check_owner(dir: &Path, what: impl Fn() -> String) -> Result<()> {
    for path in [dir.to_owned(), dir.join(FILE), dir.join(CONFIG_FILE)] {
        let shown = path.display();
        let access = Access::of(&path).with_context(|| format!("cannot examine `{shown}`"))?;
        if let Some(other) = access.other_writer() {
            bail!(
                "the run is not yours alone: `{shown}` may be changed by {other}, and {}",
                what()
            );
        }
    }
    Ok(())
}

/// Records the plugins and settings with which a new run in `dir` starts.
pub fn start(dir: &Path, plugins: Vec<LoadedPlugin>, settings: String) -> Result<()> {
    write(
        dir,
        vec![Period {
            from_step: 0,
            plugins,
            settings,
        }],
    )
}

/// Records the plugins and settings with which the run in `dir` continues after `step`. Nothing is
/// written if they are unchanged.
pub fn go_on(dir: &Path, step: u64, plugins: Vec<LoadedPlugin>, settings: String) -> Result<()> {
    let before = read(dir)?;
    let mut periods = before.clone();
    // Periods of later steps go, because those steps are discarded.
    periods.retain(|period| period.from_step < step);
    if periods
        .last()
        .is_none_or(|last| last.plugins != plugins || last.settings != settings)
    {
        periods.push(Period {
            from_step: step,
            plugins,
            settings,
        });
    }
    if periods == before {
        Ok(())
    } else {
        write(dir, periods)
    }
}

fn read(dir: &Path) -> Result<Vec<Period>> {
    Ok(seal::read::<Provenance>(&dir.join(FILE))?.periods)
}

fn write(dir: &Path, periods: Vec<Period>) -> Result<()> {
    seal::write(&dir.join(FILE), &Provenance { periods })
}
