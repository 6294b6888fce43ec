//! `host train`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use capo_loader::registry::Registry;
use capo_loader::{batch_file, watchdog};
use capo_system::signals;
use host_model::device;

use super::args::TrainArgs;
use super::failure::Failure;
use super::own_run::{self, RunTrustArgs};
use super::shared_args::SettingsArgs;
use crate::config::{self, Config, Draft, Resolved};
use crate::estimate::memory::{self, Estimate};
use crate::run::{AbsentWeights, CONFIG_FILE, Resources, Run, best, directory};
use crate::terminal::{self, ProgressLines};
use crate::train::train;

/// Name of the file that marks the directory of a search by `host find-rate`.
pub(super) const SEARCH_FILE: &str = "find-rate";

pub(super) fn run(args: &TrainArgs, started: Instant) -> Result<(), Failure> {
    if args.dry_run {
        return dry_run(args, started).map_err(Failure::Input);
    }
    let (mut run, sources) = open_run(args).map_err(Failure::Input)?;
    run.dump_batches(args.dump_batches.as_deref())
        .map_err(Failure::Input)?;
    let max_steps = run.config().train.max_steps;
    let mut progress = ProgressLines::new(started, max_steps, run.progress.step);
    progress.opening(&run.resources, &run.dir, &sources);
    if args.resume.is_some() {
        progress.resuming(&run);
    }
    if run.progress.step >= max_steps {
        progress.say("this run has done all its steps");
        return Ok(());
    }
    if let Some(ending) = best::ending(&run) {
        progress.say(&format!("this run has ended: {ending}"));
        return Ok(());
    }
    if let Some(limit) = args
        .stop_after
        .filter(|limit| run.progress.step > 0 && run.progress.step >= *limit)
    {
        progress.say(&format!(
            "this run has done {} steps (`--stop-after` is {limit})",
            run.progress.step
        ));
        return Ok(());
    }
    let place = Arc::clone(run.resources.watchdog.place());
    let stop = watch_interrupts("rollout", move || place.stopped().unwrap_or_default())
        .map_err(Failure::Run)?;
    let outcome = train(&mut run, &mut progress, args.stop_after, &stop);
    outcome.map_err(|error| explained(error, &mut run))?;
    progress.closing(&run);
    Ok(())
}

/// The failure of a run that had begun: where it stopped, and how much memory it was expected to
/// take if that ran out.
pub(super) fn explained(error: anyhow::Error, run: &mut Run) -> Failure {
    let stopped = run.resources.watchdog.place().stopped().unwrap_or_default();
    let error = device::with_estimate(error, || {
        Some(Estimate::of(&mut run.resources).ok()?.bytes())
    });
    Failure::Run(error.context(stopped))
}

/// Opens the run. The lines are about the origin of its settings and about unused plugins.
fn open_run(args: &TrainArgs) -> Result<(Run, Vec<String>)> {
    if let Some(dir) = &args.resume {
        ensure!(
            !dir.join(SEARCH_FILE).is_file(),
            "`{}` is a search of `host find-rate`, which kept no model to go on with (train with \
             the rate that it found)",
            dir.display()
        );
        let lock = directory::reopen(dir)?;
        let flags = RunTrustArgs {
            allow_changed_plugins: args.allow_changed_plugins,
            trust_run: args.trust_run,
        };
        let registry = own_run::open_plugins(dir, &args.settings.plugins, flags)?;
        let draft = Draft::read(Some(&dir.join(CONFIG_FILE)), config::DEFAULT, &[])?;
        let resolved = config::resolve(&registry, draft)?;
        own_run::check_programs(dir, &resolved.config, flags)?;
        let sources = sources(&resolved, &registry);
        let mut run = Run::resume(
            resolved.config,
            &registry,
            dir,
            lock,
            args.allow_changed_config,
        )?;
        check_memory(args.allow_more_memory, &mut run.resources)?;
        return Ok((run, sources));
    }
    args.dump_batches
        .as_deref()
        .map_or(Ok(()), |dir| batch_file::check_folder(dir, None))?;
    let (config, registry, sources) = new_run(args)?;
    let (mut resources, dir) = Run::prepare(config, &registry, AbsentWeights::Refused)?;
    check_memory(args.allow_more_memory, &mut resources)?;
    Ok((Run::begin(resources, dir, &registry)?, sources))
}

pub(super) fn check_memory(allow_more: bool, resources: &mut Resources) -> Result<()> {
    if allow_more {
        Ok(())
    } else {
        memory::check(resources)
    }
}

/// Describes a new run without starting it.
fn dry_run(args: &TrainArgs, started: Instant) -> Result<()> {
    let (config, registry, sources) = new_run(args)?;
    let (mut resources, dir) = Run::prepare(config, &registry, AbsentWeights::Counted)?;
    let estimate = Estimate::of(&mut resources)?;
    let dir = dir.unwrap_or_else(|| directory::free(&resources.name()));
    let progress = ProgressLines::new(started, resources.config.train.max_steps, 0);
    progress.opening(&resources, &dir, &sources);
    estimate
        .lines(&resources)
        .iter()
        .for_each(|line| progress.say(line));
    // A step of a large model takes minutes.
    progress.say("measuring a step on this machine ...");
    terminal::pace(&mut resources, &estimate)
        .iter()
        .for_each(|line| progress.say(line));
    terminal::faster_dtype(&mut resources)
        .iter()
        .for_each(|line| progress.say(line));
    progress.say("\nits settings, in full:\n");
    progress.say(&resources.config.in_full()?);
    check_memory(args.allow_more_memory, &mut resources)
}

/// The settings of a new run, the plugins, and lines about their origin.
fn new_run(args: &TrainArgs) -> Result<(Config, Registry, Vec<String>)> {
    let (mut config, registry, sources) = settings(&args.settings)?;
    if let Some(dir) = &args.output_dir {
        config.train.output_dir = Some(dir.clone());
    }
    Ok((config, registry, sources))
}

/// The settings of a command line: the config, the plugins, and lines about their origin.
pub(super) fn settings(args: &SettingsArgs) -> Result<(Config, Registry, Vec<String>)> {
    let registry = args.config.open(&args.plugins)?;
    let draft = args
        .config
        .draft()?
        .with_appended(args.appended())
        .on_device(args.device.as_deref())?;
    let resolved = config::resolve(&registry, draft)?;
    resolved.check_aliases(&registry)?;
    let sources = sources(&resolved, &registry);
    Ok((resolved.config, registry, sources))
}

/// Lines of a run's header about the origin of its settings and about unused plugins. Warns of
/// components that are named twice.
fn sources(resolved: &Resolved, registry: &Registry) -> Vec<String> {
    let config = &resolved.config;
    config
        .named_twice()
        .iter()
        .for_each(|sentence| terminal::warn(sentence));
    let unused = registry.unused(&config.component_ids(), config.recipe.as_deref());
    let unused = unused
        .into_iter()
        .map(|sentence| format!("plugin     {sentence}"));
    resolved.sources.iter().cloned().chain(unused).collect()
}

/// Handles the signals that end a training. The first Ctrl-C, SIGTERM or SIGHUP sets the flag that
/// is returned: the training ends after the current `unit`. The second one ends the process, with
/// the message `at_once`. SIGUSR1 and SIGUSR2, with which batch systems warn of the end of a job's
/// time, only ever set the flag.
pub(super) fn watch_interrupts(
    unit: &'static str,
    at_once: impl Fn() -> String + Send + 'static,
) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    let mut is_second = false;
    let handle = move || {
        let is_warning = signals::take_user_signal();
        if !is_warning && std::mem::replace(&mut is_second, true) {
            terminal::note(&at_once());
            watchdog::exit(130);
        }
        if !stopping.swap(true, Ordering::Relaxed) {
            let again = if is_warning {
                ""
            } else {
                " (again to stop at once)"
            };
            terminal::note(&format!(
                "stopping after this {unit}, with a checkpoint{again}"
            ));
        }
    };
    signals::keeping_ignored(|| ctrlc::set_handler(handle)).context("cannot watch for Ctrl-C")?;
    signals::terminate_at_user_signals();
    Ok(stop)
}
