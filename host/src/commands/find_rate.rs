//! `host find-rate`.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use capo_loader::ComponentConfig;
use capo_system::files;
use host_model::schedule::ScheduleKind;
use toml::Table;

use super::args::FindRateArgs;
use super::failure::Failure;
use super::train::{SEARCH_FILE, check_memory, explained, settings};
use crate::config::{Config, EvalConfig};
use crate::metrics::{FoundRates, Line};
use crate::run::{AbsentWeights, Run, directory};
use crate::terminal::{ProgressLines, faster_dtype, found_rate, word};
use crate::train::{Observer, train};

const GOVERNOR: &str = "governor.kl";
/// So many steps in which completions of one prompt have different rewards tell the governor a
/// rate.
const FIRST: u64 = 6;
/// Number of steps of a search, if all of them are such steps. The rate follows the run from the
/// first ones on.
const STEPS: u64 = 25;
/// The rate is the median of so many of the last steps.
const LAST: usize = 10;

pub(super) fn run(args: &FindRateArgs, started: Instant) -> Result<(), Failure> {
    let (mut run, sources) = open_run(args).map_err(Failure::Input)?;
    let stop = AtomicBool::new(false);
    // `STEPS` is what a search usually takes; `max_steps` is only its limit.
    let progress = ProgressLines::new(started, STEPS, 0);
    progress.opening(&run.resources, &run.dir, &sources);
    faster_dtype(&mut run.resources)
        .iter()
        .for_each(|line| progress.say(line));
    let mut search = Search {
        progress,
        found: Vec::new(),
        stop: &stop,
    };
    train(&mut run, &mut search, None, &stop).map_err(|error| explained(error, &mut run))?;
    search.progress.end();
    let last = search.found.iter().rev().take(LAST);
    let rates = FoundRates::of(last.copied()).ok_or_else(|| Failure::Run(not_found(&run)))?;
    let rate = rates.middle;
    search
        .progress
        .say(&format!("\nlearning_rate = {rate:.1e}    # under [train]"));
    if rate == run.config().train.learning_rate {
        let higher = 10.0 * rate;
        search.progress.say(&format!(
            "this is the rate that was set, and no step was too long at it: a higher one may \
             learn faster (try `--set train.learning_rate={higher:.1e}`)"
        ));
    }
    Ok(())
}

/// A training run that ends when a rate was found.
struct Search<'a> {
    progress: ProgressLines,
    /// The learning rates of the steps, from the first that has one.
    found: Vec<f64>,
    stop: &'a AtomicBool,
}

impl Observer for Search<'_> {
    fn line(&mut self, run: &Run, line: &Line) {
        self.progress.line(run, line);
        self.found.extend(found_rate(run, line));
        let ends = self.found.len() as u64 > STEPS - FIRST;
        self.stop.store(ends, Ordering::Relaxed);
    }

    fn warn(&mut self, warning: &str) {
        self.progress.warn(warning);
    }
}

/// Opens the run of the search. The lines are about the origin of its settings.
fn open_run(args: &FindRateArgs) -> Result<(Run, Vec<String>)> {
    let (mut config, mut registry, sources) = settings(&args.settings)?;
    let governor = config
        .step_control
        .iter()
        .find(|control| control.id == GOVERNOR);
    match governor
        .and_then(|control| control.table.get("target"))
        .filter(|target| target.as_str() != Some("auto"))
    {
        Some(target) => bail!(
            "`target` of `{GOVERNOR}` is {target}, and a fixed target finds no learning rate \
             (leave it out, or set it to \"auto\")"
        ),
        None if governor.is_none() => {
            config.step_control.push(ComponentConfig {
                id: GOVERNOR.to_owned(),
                table: Table::new(),
            });
        }
        None => {}
    }
    if !registry.offers().iter().any(|offer| offer.id == GOVERNOR) {
        let name = format!(
            "{}governor{}",
            env::consts::DLL_PREFIX,
            env::consts::DLL_SUFFIX
        );
        let beside = env::current_exe()?.with_file_name(&name);
        ensure!(
            beside.is_file(),
            "the search is done by `{GOVERNOR}`, whose plugin is not beside `host` (give \
             `--plugin {name}`)"
        );
        let mut plugins = args.settings.plugins.clone();
        plugins.plugin.push(beside);
        registry = plugins.open_within(config.train.component_timeout)?;
    }
    keep_to_the_search(&mut config);
    let (mut resources, dir) = Run::prepare(config, &registry, AbsentWeights::Refused)?;
    check_memory(args.allow_more_memory, &mut resources)?;
    resources.saves = false;
    let run = Run::begin(resources, dir, &registry)?;
    files::write_atomic(&run.dir.join(SEARCH_FILE), b"")?;
    Ok((run, sources))
}

/// Changes settings for a search: a constant rate, at which all steps count alike, no evaluation,
/// no end before that of the search, and a folder of its own.
fn keep_to_the_search(config: &mut Config) {
    config.eval = EvalConfig {
        reward: config.eval.reward.take(),
        ..EvalConfig::default()
    };
    let train = &mut config.train;
    train.output_dir = Some(directory::free(&format!("find-rate-seed{}", train.seed)));
    train.max_steps = train.max_steps.max(STEPS);
    train.lr_scheduler_type = ScheduleKind::Constant;
    train.warmup_ratio = 0.0;
    train.metric_for_best_model = None;
    train.greater_is_better = None;
    train.early_stopping_patience = 0;
    train.early_stopping_threshold = 0.0;
    train.max_completions = 0;
    train.max_time = 0.0;
}

fn not_found(run: &Run) -> anyhow::Error {
    anyhow!(
        "no learning rate was found in {} steps: the search needs {FIRST} that move the policy, \
         with completions of one prompt that have different rewards (`host diagnose {}` says what \
         it sees; allow more with `--set train.max_steps=N`)",
        run.progress.step,
        word(&run.dir)
    )
}
