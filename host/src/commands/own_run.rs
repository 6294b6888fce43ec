//! A run whose settings another command takes: its plugins and programs, with the trust that a
//! resume asks for.

use std::path::Path;

use anyhow::Result;
use capo_loader::registry::Registry;
use clap::Args;

use super::shared_args::PluginArgs;
use crate::config::{self, Config};
use crate::run::{CONFIG_FILE, checkpoint, provenance};
use crate::terminal::word;

/// The flags of commands that take plugins and programs from a run.
#[derive(Args, Clone, Copy)]
pub(super) struct RunTrustArgs {
    /// Uses plugins of a run even if they are not the files that the run used.
    #[arg(long)]
    pub(super) allow_changed_plugins: bool,
    /// Uses the plugins and programs that a run names, even if other users can write its settings.
    #[arg(long)]
    pub(super) trust_run: bool,
}

/// The run whose own settings the file `config` has.
pub(super) fn of_config(config: &Path) -> Option<&Path> {
    let dir = config
        .parent()
        .filter(|_| config.file_name().is_some_and(|name| name == CONFIG_FILE))?;
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    checkpoint::run_of(dir).filter(|run| *run == dir)
}

/// Opens the plugins of the run in `dir`, or those that the command line names instead.
pub(super) fn open_plugins(
    dir: &Path,
    plugins: &PluginArgs,
    flags: RunTrustArgs,
) -> Result<Registry> {
    let known = provenance::latest(dir)?;
    let given = &plugins.plugin;
    if given.is_empty() && !flags.trust_run && !known.is_empty() {
        let named = known
            .iter()
            .map(|plugin| format!("`{}`", plugin.path.display()))
            .collect::<Vec<_>>()
            .join(", ");
        provenance::check_owner(dir, || {
            format!(
                "{named}, which it names, would be loaded (give the plugins that you trust with \
                 `--plugin`, or take these with `--trust-run`)"
            )
        })?;
    }
    let names = if given.is_empty() {
        known.iter().map(|plugin| plugin.path.clone()).collect()
    } else {
        given.clone()
    };
    let mut trust = plugins.trust();
    trust.known = Some(known).filter(|_| !flags.allow_changed_plugins);
    let seconds = config::component_timeout(Some(&dir.join(CONFIG_FILE)), &[]);
    Registry::open_with(&names, &trust, Some(seconds))
}

/// Refuses to start the programs that the settings of the run in `dir` name, if another user may
/// have written them there.
pub(super) fn check_programs(dir: &Path, config: &Config, flags: RunTrustArgs) -> Result<()> {
    let rewards = config.reward.iter().map(|reward| ("reward", &reward.id));
    let environment = config
        .environment
        .iter()
        .map(|environment| ("environment", &environment.component.id));
    let program = rewards
        .chain(environment)
        .find(|(_, id)| *id == "command")
        .filter(|_| !flags.trust_run);
    let Some((point, id)) = program else {
        return Ok(());
    };
    provenance::check_owner(dir, || {
        let settings = word(&dir.join(CONFIG_FILE));
        format!(
            "its {point} `{id}` would start a program (read what `{settings}` names, then take it \
             with `--trust-run`)"
        )
    })
}
