//! `host train`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use capo_loader::place::Place;
use capo_loader::registry::Registry;

use super::Failure;
use super::args::TrainArgs;
use crate::config::{self, Draft};
use crate::report::{Report, terminal};
use crate::run::{CONFIG_FILE, Run, directory, provenance};
use crate::train::train;

/// Trains a new run, or goes on with one.
pub(super) fn run(args: &TrainArgs, started: Instant) -> Result<(), Failure> {
    let mut run = open_run(args).map_err(Failure::Input)?;
    run.dump_batches(args.dump_batches.as_deref()).map_err(Failure::Input)?;
    let mut report = Report::new(started, &run);
    report.opening(&run);
    if run.progress.step >= run.config.train.max_steps {
        report.say("this run has done all its steps");
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    watch_interrupts(&stop, run.watchdog.place()).map_err(Failure::Run)?;
    let outcome = train(&mut run, &mut report, args.stop_after, &stop);
    if let Err(error) = outcome {
        let stopped = run.watchdog.place().stopped().unwrap_or_default();
        return Err(Failure::Run(error.context(stopped)));
    }
    report.closing(&run);
    Ok(())
}

fn open_run(args: &TrainArgs) -> Result<Run> {
    if let Some(dir) = &args.resume {
        let lock = directory::reopen(dir)?;
        let registry = reopen_plugins(args, dir)?;
        let config = Draft::read(Some(&dir.join(CONFIG_FILE)), config::DEFAULT, &[])?;
        return Run::resume(config::resolve(&registry, config)?, &registry, dir, lock, args.allow_changed_config);
    }
    args.dump_batches.as_deref().map_or(Ok(()), directory::check_unused)?;
    let registry = args.plugins.open()?;
    let mut config = args.config.resolve(&registry)?;
    if let Some(dir) = &args.output_dir {
        config.train.output_dir = Some(dir.clone());
    }
    if let Some(device) = &args.device {
        config.train.device.clone_from(device);
    }
    Run::start(config, &registry)
}

/// The plugins of the run in `dir`, or those that the command line names in their place.
fn reopen_plugins(args: &TrainArgs, dir: &Path) -> Result<Registry> {
    let known = provenance::latest(dir)?;
    let given = &args.plugins.plugin;
    let names = if given.is_empty() { known.iter().map(|plugin| plugin.path.clone()).collect() } else { given.clone() };
    let mut trust = args.plugins.trust();
    trust.known = Some(known).filter(|_| !args.allow_changed_plugins);
    Registry::open_with(&names, &trust)
}

/// The first Ctrl-C ends the run after the current rollout; the second ends the process.
fn watch_interrupts(stop: &Arc<AtomicBool>, place: &Arc<Place>) -> Result<()> {
    let (stop, place) = (Arc::clone(stop), Arc::clone(place));
    ctrlc::set_handler(move || {
        if stop.swap(true, Ordering::Relaxed) {
            terminal::note(&place.stopped().unwrap_or_default());
            capo_loader::watchdog::exit(130);
        }
        terminal::note("stopping after this rollout, with a checkpoint (again to stop at once)");
    })
    .context("cannot watch for Ctrl-C")
}
