//! The command line: what each subcommand does.

mod args;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use capo_plugin::Point;
use clap::Parser;

use args::{Cli, Command, ConfigArgs, EvalArgs, ListArgs, NewPluginArgs, ReplayArgs, SftArgs, TrainArgs};

use crate::check::{self, CheckArgs};
use crate::config::{self, ComponentConfig, Config, Draft};
use crate::data::Tokenizer;
use crate::device;
use crate::embedded;
use crate::eval::{self, Exam, Grader};
use crate::files;
use crate::model::Policy;
use crate::new_plugin::{self, NewPlugin};
use crate::provenance;
use crate::registry::Registry;
use crate::replay::replay;
use crate::report::{Report, say};
use crate::reward::Rewards;
use crate::run::{CONFIG_FILE, Run};
use crate::sft::Sft;
use crate::sink::WarningSink;
use crate::sweep::{self, Sweep};
use crate::train::train;
use crate::trust::PIN;
use crate::upload;
use crate::watchdog::Watchdog;

/// A failure, by what the user can do about it.
enum Failure {
    /// Exit code 2: settings, files or plugins are wrong, and nothing has been done.
    Input(anyhow::Error),
    /// Exit code 1: the run broke on the way.
    Run(anyhow::Error),
}

/// Runs the command line; the exit code is 0, 2 for bad input, 1 for a run that failed.
#[must_use]
pub fn main(started: Instant) -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Train(args) => run_train(args, started),
        Command::Eval(args) => run_eval(args),
        Command::Sft(args) => run_sft(args),
        Command::Replay(args) => run_replay(args),
        Command::Plugins(args) => run_plugins(args).map_err(Failure::Input),
        Command::Check(args) => match run_check(args, cli.verbose) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(Failure::Input(error)),
        },
        Command::NewPlugin(args) => run_new_plugin(args).map_err(Failure::Input),
    };
    let (error, code) = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Input(error)) => (error, 2),
        Err(Failure::Run(error)) => (error, 1),
    };
    eprintln!("error: {}", sentence(&error, cli.verbose));
    ExitCode::from(code)
}

/// The error and its causes on one line: of each cause its first line, left out where that is only the heading of more, as
/// of a comparison of layouts. All lines where `verbose`.
pub(crate) fn sentence(error: &anyhow::Error, verbose: bool) -> String {
    let mut causes = Vec::new();
    for cause in error.chain().map(|cause| cause.to_string().trim().to_owned()) {
        let first = cause.lines().next().unwrap_or_default();
        if verbose {
            causes.push(cause);
        } else if causes.is_empty() || !first.ends_with(':') {
            causes.push(first.to_owned());
        }
    }
    causes.join(": ")
}

fn run_train(args: &TrainArgs, started: Instant) -> Result<(), Failure> {
    let mut run = open_run(args).map_err(Failure::Input)?;
    run.dump_batches(args.dump_batches.as_deref()).map_err(Failure::Input)?;
    let mut report = Report::new(started, &run);
    report.opening(&run);
    if run.progress.step >= run.config.train.max_steps {
        report.say("this run has done all its steps");
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    watch_interrupts(&stop).map_err(Failure::Run)?;
    let outcome = train(&mut run, &mut report, args.stop_after, &stop);
    if let Err(error) = outcome {
        let resume = format!(
            "the run stopped after step {} (go on with `host train --resume {}`)",
            run.progress.step,
            run.dir.display()
        );
        return Err(Failure::Run(error.context(resume)));
    }
    report.closing(&run);
    Ok(())
}

fn open_run(args: &TrainArgs) -> Result<Run> {
    if let Some(dir) = &args.resume {
        let config = dir.join(CONFIG_FILE);
        if !config.is_file() {
            bail!(
                "`{}` is not a run directory: it has no `{CONFIG_FILE}` (give the folder that `host train` printed)",
                dir.display()
            );
        }
        let registry = reopen_plugins(args, dir)?;
        let config = registry.resolve(Draft::read(Some(&config), config::DEFAULT, &[])?)?;
        return Run::resume(config, &registry, dir);
    }
    let registry = args.plugins.open()?;
    let mut config = resolve(&registry, &args.config)?;
    if let Some(dir) = &args.output_dir {
        config.train.output_dir = Some(dir.clone());
    }
    if let Some(device) = &args.device {
        config.train.device.clone_from(device);
    }
    Run::start(config, &registry)
}

fn resolve(registry: &Registry, args: &ConfigArgs) -> Result<Config> {
    registry.resolve(Draft::read(args.config.as_deref(), config::DEFAULT, &args.set)?)
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
fn watch_interrupts(stop: &Arc<AtomicBool>) -> Result<()> {
    let stop = Arc::clone(stop);
    ctrlc::set_handler(move || {
        if stop.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("stopping after this rollout, with a checkpoint (again to stop at once)");
    })
    .context("cannot watch for Ctrl-C")
}

fn run_eval(args: &EvalArgs) -> Result<(), Failure> {
    let open = || -> Result<_> {
        let registry = args.plugins.open()?;
        let config = resolve(&registry, &args.config)?;
        let name = args.model.as_deref().unwrap_or(&config.model.model_name_or_path);
        let files = embedded::model_files(name)?;
        let dtype = config.train.dtype;
        let device = device::open(args.device.as_deref().unwrap_or(&config.train.device), dtype)?;
        let policy = Policy::load(&files, &device)?.with_dtype(dtype.into());
        let tokenizer = Tokenizer::open(&files)?;
        let dataset = config.data.open(config.train.seed)?;
        let examples = dataset.held_out(args.num_prompts.unwrap_or(config.eval.num_prompts))?;
        let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
        let rewards = Rewards::build(&registry, &config.reward, &watchdog)?;
        Ok((policy, tokenizer, rewards, examples, config, watchdog))
    };
    let (policy, tokenizer, mut rewards, examples, config, watchdog) = open().map_err(Failure::Input)?;
    let mut work = || -> Result<()> {
        let mut sink = WarningSink { warned: &mut BTreeSet::new(), watchdog: &watchdog };
        let mut grader = Grader { rewards: &mut rewards, sink: &mut sink };
        let graded = eval::grade(&policy, &tokenizer, &mut grader, &examples, &Exam::of(&config, 0))?;
        let (share, prompts) = (100.0 * eval::share_right(&graded), graded.len());
        say(&format!("held-out accuracy {share:.1}% of {prompts} prompts, greedy"));
        if let Some(path) = &args.output {
            let lines =
                graded.iter().map(|graded| Ok(serde_json::to_string(graded)? + "\n")).collect::<Result<String>>()?;
            files::write_atomic(path, lines.as_bytes())?;
        }
        Ok(())
    };
    work().map_err(Failure::Run)
}

fn run_sft(args: &SftArgs) -> Result<(), Failure> {
    let mut sft = Sft::open(args.config.as_deref(), &args.set, args.device.as_deref(), &args.output_dir)
        .map_err(Failure::Input)?;
    sft.run(&say).map_err(Failure::Run)
}

fn run_replay(args: &ReplayArgs) -> Result<(), Failure> {
    let work = || -> Result<()> {
        let device = upload::Device::open(&args.device, args.dtype)?;
        let registry = args.plugins.open()?;
        let masks = |set: Option<String>| -> Result<Vec<ComponentConfig>> {
            let sets: Vec<String> = args.set.iter().cloned().chain(set).collect();
            match &args.config {
                Some(path) => Draft::read(Some(path), config::DEFAULT, &sets)?.masks(),
                None => Ok(registry.resolve(Draft::read(None, config::DEFAULT, &sets)?)?.mask),
            }
        };
        let ranges = args.sweep.iter().map(|text| text.parse()).collect::<Result<Vec<sweep::Range>>>()?;
        let target = args.target_rate.as_deref().map(str::parse).transpose()?;
        if let Some(out) = &args.out {
            let mut masks = registry.masks(&masks(None)?, &Watchdog::off())?;
            replay(&mut masks, &args.batches, device.as_ref(), out, &say)?;
        }
        Sweep::open(&registry, &masks, &args.batches, device.as_ref(), &ranges)?.run(&ranges, target.as_ref(), &say)
    };
    work().map_err(Failure::Input)
}

/// Whether nothing is bad.
fn run_check(args: &CheckArgs, verbose: bool) -> Result<bool> {
    match &args.run_one {
        Some(task) => check::perform(task).map(|()| true),
        None => check::check(args, verbose),
    }
}

fn run_plugins(args: &ListArgs) -> Result<()> {
    let registry = args.plugins.open()?;
    if args.hash {
        for plugin in registry.plugins() {
            say(&format!("{}{PIN}{}  {}", plugin.path.display(), plugin.sha256, plugin.packages.join(", ")));
        }
        return Ok(());
    }
    let mut point = None;
    for offer in registry.offers() {
        if point.replace(offer.point) != Some(offer.point) {
            let gap = if offer.point == Point::ALL[0] { "" } else { "\n" };
            say(&format!("{gap}{}", offer.point.name()));
        }
        let keys =
            if offer.keys.is_empty() { "no keys".to_owned() } else { format!("keys: {}", offer.keys.join(", ")) };
        say(&format!("  {:<24} {}", offer.id, offer.about));
        say(&format!("  {:<24} {keys}", ""));
        say(&format!("  {:<24} from {}, {}", "", offer.package, offer.origin));
    }
    say("\nrecipe");
    for recipe in registry.recipes() {
        say(&format!("  {:<24} {} ({})", recipe.name, recipe.about, recipe.origin));
    }
    Ok(())
}

fn run_new_plugin(args: &NewPluginArgs) -> Result<()> {
    let point = Point::ALL.into_iter().find(|point| point.name() == args.point).unwrap_or(Point::Mask);
    let new = NewPlugin { name: &args.name, point, capo_plugin: args.capo_plugin.as_deref(), dir: &args.dir };
    let folder = new_plugin::create(&new)?;
    let (name, library, setting) =
        (&args.name, new_plugin::library(&args.name), new_plugin::setting(&args.name, point));
    say(&format!("made `{}` with the {} `{name}.{}`; next:", folder.display(), point.name(), point.name()));
    say(&format!("  cd {}\n  cargo test\n  cargo build --release", folder.display()));
    say(&format!("  host train --plugin target/release/{library} {setting}"));
    Ok(())
}
