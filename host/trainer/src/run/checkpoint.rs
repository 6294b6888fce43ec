//! Checkpoints: model, optimizer, progress and every component's state. A checkpoint is complete or
//! absent.
//!
//! `checkpoints/step-000040/` is a Hugging Face directory, or a PEFT adapter's. Beside the model it
//! has four things: `optimizer.safetensors`, the components' states, `progress.json`, and a
//! manifest with the SHA-256 of every file. Random streams are functions of seed and position, so
//! no generator needs saving.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use capo_system::folders::{self, NewFolder};
use capo_system::manifest::SealedFolder;
use capo_system::{files, terminal};
use host_data::{Tokenizer, fingerprint};
use host_model::CONFIG_FILE;
use serde::{Deserialize, Serialize};

use super::disk::fits_disk;
use super::progress::{Progress, RecoveryPoint, States};
use super::{Resources, Run, best, provenance, states, trained};
use crate::config::Config;

/// Folder of the checkpoints in a run's directory.
pub const FOLDER: &str = "checkpoints";
const PROGRESS_FILE: &str = "progress.json";

/// Contents of `progress.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    progress: Progress,
    /// Component ids, in the order of their files.
    components: Vec<String>,
    /// Ids of reward components, in the order of their files.
    rewards: Vec<String>,
    /// True for a checkpoint by time, which the next checkpoint replaces.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_time: bool,
    /// Hash of the training data; `None` for generated data, and in older checkpoints without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// Hashes of the evaluation rows, by purpose; they may be absent for the same reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    measured: BTreeMap<String, String>,
}

/// A kind of checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    Lasting,
    /// Replaced by the next checkpoint.
    ByTime,
}

/// The checkpoint that is due at the end of a rollout: every `train.save_steps`, at the end of the
/// run or of this process, and at the best evaluation; or by time, when a kill could cost the work
/// of `at_risk`.
pub fn due(run: &Run, stopped: bool, at_risk: Duration) -> Option<Due> {
    if !run.resources.saves {
        return None;
    }
    let (step, train) = (run.progress.step, &run.config().train);
    let is_best = run
        .progress
        .best
        .as_ref()
        .is_some_and(|best| best.step == step);
    let is_regular = train.save_steps > 0 && step.is_multiple_of(train.save_steps);
    if stopped || is_regular || is_best || best::is_done(run) {
        return Some(Due::Lasting);
    }
    is_late(train.save_minutes, at_risk).then_some(Due::ByTime)
}

/// True if a kill could cost the work of `at_risk`, and a checkpoint by time is due every
/// `minutes`; 0 is never.
pub fn is_late(minutes: f64, at_risk: Duration) -> bool {
    minutes > 0.0 && at_risk.as_secs_f64() >= 60.0 * minutes
}

/// Directory of the checkpoint for the current step.
pub fn dir(run: &Run) -> PathBuf {
    path(&run.dir, run.progress.step)
}

/// Directory of the checkpoint of `step`, for the run in `dir`.
pub fn path(dir: &Path, step: u64) -> PathBuf {
    dir.join(FOLDER).join(name(step))
}

/// Name of the folder of the checkpoint of `step`.
pub fn name(step: u64) -> String {
    format!("step-{step:06}")
}

/// True if the checkpoint of `step` of the run in `dir` is one by time.
fn is_by_time(dir: &Path, step: u64) -> bool {
    progress(&path(dir, step)).is_ok_and(|saved| saved.by_time)
}

/// The progress file of the checkpoint in the folder `dir`.
fn progress(dir: &Path) -> Result<Saved> {
    Ok(serde_json::from_slice(
        &SealedFolder::open(dir)?.read(PROGRESS_FILE)?,
    )?)
}

/// A checkpoint whose files are written, but which is not yet in place.
pub struct Written {
    step: u64,
    new: NewFolder,
}

/// Writes the files of the checkpoint that is due at the current step; `None` if there is none, or
/// it exists. One by time is refused if it takes the room of the checkpoint at the end of the run.
pub fn write(run: &mut Run, due: Option<Due>) -> Result<Option<Written>> {
    let Some(due) = due.filter(|_| !dir(run).exists()) else {
        return Ok(None);
    };
    let (started, by_time) = (Instant::now(), due == Due::ByTime);
    if by_time {
        // An earlier one is deleted after this one is in place.
        let replaces = steps(&run.dir)?
            .into_iter()
            .any(|step| is_by_time(&run.dir, step));
        fits_disk(
            &run.dir,
            run.resources.checkpoint_bytes(),
            if replaces { 1 } else { 2 },
        )?;
    }
    let written = write_point(
        run,
        &RecoveryPoint::of(run),
        &States::save(&run.resources)?,
        by_time,
    )?;
    run.observers.metrics.add_time("checkpoint", started);
    Ok(Some(written))
}

/// Moves what was `written` into place. The failure of a checkpoint by time is a warning.
pub fn finish(
    run: &Run,
    due: Option<Due>,
    written: Result<Option<Written>>,
) -> Result<Option<String>> {
    let done = written.and_then(|written| written.map_or(Ok(()), |written| appear(run, &written)));
    match done {
        Err(error) if due == Some(Due::ByTime) => Ok(Some(format!(
            "no checkpoint after step {}: {error:#}",
            run.progress.step
        ))),
        done => done.map(|()| None),
    }
}

/// Writes a checkpoint of the recovery point, if the components' states at that point are still
/// available.
pub fn save_last(run: &mut Run) -> Result<()> {
    let Some(mut point) = run.recovery.take().filter(|_| run.resources.saves) else {
        return Ok(());
    };
    let states = match point.states.take() {
        None if run.resources.watchdog.calls() == point.calls => {
            Some(States::save(&run.resources)?)
        }
        states => states,
    };
    match states {
        Some(states) => {
            let written = write_point(run, &point, &states, false)?;
            appear(run, &written)
        }
        None => Ok(()),
    }
}

fn write_point(
    run: &Run,
    point: &RecoveryPoint,
    states: &States,
    by_time: bool,
) -> Result<Written> {
    let folder = run.dir.join(FOLDER);
    let new = NewFolder::in_folder(&folder)
        .with_context(|| format!("cannot make a checkpoint in `{}`", folder.display()))?;
    fill(run, point, states, by_time, new.path())?;
    Ok(Written {
        step: point.progress.step,
        new,
    })
}

/// Moves the checkpoint into place, then deletes those that it replaces and those beyond
/// `train.save_total_limit`.
fn appear(run: &Run, Written { step, new }: &Written) -> Result<()> {
    let cannot = || {
        format!(
            "cannot rename a checkpoint to `{}`",
            path(&run.dir, *step).display()
        )
    };
    new.appear_as(Path::new(&name(*step)))
        .with_context(cannot)?;
    run.resources.watchdog.place().saved(*step);
    prune(&run.dir, &run.resources.config, &run.progress)
}

fn fill(
    run: &Run,
    point: &RecoveryPoint,
    states: &States,
    by_time: bool,
    dir: &Path,
) -> Result<()> {
    let Resources {
        policy,
        companions,
        optimizer,
        ..
    } = &run.resources;
    trained::write(dir, policy, companions, optimizer)?;
    states.write(dir)?;
    let ids = |states: &[(String, Vec<u8>)]| states.iter().map(|(id, _)| id.clone()).collect();
    let (components, rewards) = (ids(&states.components), ids(&states.rewards));
    let data = run.resources.dataset.fingerprint().map(str::to_owned);
    let saved = Saved {
        progress: point.progress.clone(),
        components,
        rewards,
        by_time,
        data,
        measured: measured(&run.resources),
    };
    files::write_atomic(
        &dir.join(PROGRESS_FILE),
        &serde_json::to_vec_pretty(&saved)?,
    )?;
    SealedFolder::seal(dir)
}

/// Steps of all checkpoints of the run in `dir`, oldest first.
pub fn steps(dir: &Path) -> Result<Vec<u64>> {
    let folder = &dir.join(FOLDER);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut steps = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list `{}`", folder.display()))?
    {
        let found = entry?.file_name();
        let step = found
            .to_str()
            .and_then(|name| name.strip_prefix("step-"))
            .and_then(|step| step.parse().ok());
        steps.extend(step.filter(|step| *name(*step) == *found));
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Step of the newest checkpoint of the run in `dir`; 0 if it has none.
pub fn newest(dir: &Path) -> Result<u64> {
    Ok(steps(dir)?.pop().unwrap_or(0))
}

/// Best step so far of the run in `dir`, according to its `newest` checkpoint; `None` without a
/// metric for it, or if its checkpoint is gone.
fn best(dir: &Path, newest: u64) -> Result<Option<u64>> {
    let (shown, newest) = (dir.display(), path(dir, newest));
    let damaged = || format!("checkpoint `{}` cannot be used", newest.display());
    let best = progress(&newest)
        .with_context(damaged)?
        .progress
        .best
        .map(|best| best.step);
    let there = best.filter(|best| path(dir, *best).is_dir());
    if let (Some(best), None) = (best, there) {
        terminal::warn(&format!(
            "the run `{shown}` has no longer its best checkpoint, of step {best}; the newest is taken"
        ));
    }
    Ok(there)
}

/// True if `dir` holds a run.
fn is_run(dir: &Path) -> bool {
    dir.join(super::CONFIG_FILE).is_file()
        && (dir.join(FOLDER).is_dir() || dir.join(provenance::FILE).is_file())
}

/// The folder of the run that `dir` is, or is a checkpoint of.
pub fn run_of(dir: &Path) -> Option<&Path> {
    let is_checkpoints = |folder: &&Path| folder.file_name().is_some_and(|name| name == FOLDER);
    let runs = [
        Some(dir),
        dir.parent().filter(is_checkpoints).and_then(Path::parent),
    ];
    runs.into_iter().flatten().find(|run| is_run(run))
}

/// The checkpoint of the run `model` at `step`, by default the best or else the newest, and its
/// step. `None` if the model is no run.
pub fn chosen(model: &str, step: Option<u64>) -> Result<Option<(PathBuf, u64)>> {
    let dir = Path::new(model);
    if !is_run(dir) {
        ensure!(
            step.is_none(),
            "`{model}` is no run, and so has no steps to choose from (remove `--step`)"
        );
        return Ok(None);
    }
    let steps = steps(dir)?;
    let newest = *steps
        .last()
        .with_context(|| format!("the run `{model}` has no checkpoint yet"))?;
    let step = match step {
        Some(step) => step,
        None => best(dir, newest)?.unwrap_or(newest),
    };
    ensure!(
        steps.contains(&step),
        "the run `{model}` has no checkpoint of step {step} (it has those of {})",
        steps
            .iter()
            .map(u64::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    );
    Ok(Some((path(dir, step), step)))
}

/// The model that `model` names: a run's chosen checkpoint, or `model` itself.
pub fn model_of(model: &str) -> Result<String> {
    Ok(chosen(model, None)?.map_or_else(
        || model.to_owned(),
        |(checkpoint, _)| checkpoint.display().to_string(),
    ))
}

/// Deletes the checkpoints by time before the newest checkpoint. Of the others, deletes the oldest
/// beyond `train.save_total_limit`, but never the best or the newest.
fn prune(dir: &Path, config: &Config, progress: &Progress) -> Result<()> {
    let (limit, steps) = (config.train.save_total_limit, steps(dir)?);
    let newest = steps.last().copied();
    let (by_time, others): (Vec<u64>, Vec<u64>) =
        steps.into_iter().partition(|step| is_by_time(dir, *step));
    let surplus = if limit == 0 {
        0
    } else {
        others.len().saturating_sub(limit)
    };
    let kept = [
        others.last().copied(),
        progress.best.as_ref().map(|best| best.step),
    ];
    let replaced = by_time.into_iter().filter(|step| Some(*step) != newest);
    let old = others
        .into_iter()
        .filter(|step| !kept.contains(&Some(*step)))
        .take(surplus);
    replaced
        .chain(old)
        .try_for_each(|step| folders::delete(&path(dir, step)))
}

/// State of a resumed run besides its resources. The default is a run's beginning.
pub struct Loaded {
    pub progress: Progress,
    /// True if a recovery point holds the components' states.
    pub remembers: bool,
    /// Descriptions of rows that are not those of the checkpoint.
    pub changed: Vec<String>,
}

impl Default for Loaded {
    fn default() -> Self {
        Self {
            progress: Progress::default(),
            remembers: true,
            changed: Vec::new(),
        }
    }
}

/// Loads the checkpoint of `step` of the run in `dir` into `resources`. Step 0 is the beginning of
/// the run and needs no checkpoint.
pub fn load(
    resources: &mut Resources,
    dir: &Path,
    step: u64,
    allow_changes: bool,
) -> Result<Loaded> {
    if step == 0 {
        return Ok(Loaded::default());
    }
    let path = path(dir, step);
    let (saved, remembers) = read(resources, &path, step)
        .with_context(|| format!("checkpoint `{}` cannot be used", path.display()))?;
    let mut rows = Vec::new();
    if saved
        .data
        .is_some_and(|data| resources.dataset.fingerprint() != Some(&data))
    {
        rows.push((
            "training data".to_owned(),
            format!(": {}", resources.dataset.describe()),
        ));
    }
    let now = measured(resources);
    let others = saved
        .measured
        .into_iter()
        .filter(|(rows, hash)| now.get(rows).is_some_and(|now| now != hash));
    rows.extend(others.map(|(rows, _)| (rows, String::new())));
    if let Some((rows, now)) = rows.first().filter(|_| !allow_changes) {
        bail!(
            "the {rows} are not those that the checkpoint of step {step} was made with{now} (put them back, or take them with `--allow-changed-config`)"
        );
    }
    // If the process was killed before pruning, one checkpoint too many exists.
    prune(dir, &resources.config, &saved.progress)?;
    let changed = rows
        .into_iter()
        .map(|(rows, now)| format!("the {rows}{now}"))
        .collect();
    let (mut progress, measure) = (saved.progress, resources.config.train.measure_of_best());
    if progress.completions == 0 {
        progress.completions = progress
            .prompts
            .saturating_mul(resources.config.rollout.num_generations as u64);
    }
    // The value of another metric is no best one of this.
    progress.best = progress
        .best
        .filter(|best| measure.is_some() && (best.measure.is_none() || best.measure == measure));
    Ok(Loaded {
        progress,
        remembers,
        changed,
    })
}

/// Hashes of the evaluation rows, by purpose.
fn measured(resources: &Resources) -> BTreeMap<String, String> {
    let held_out = fingerprint(&resources.held_out).map(|hash| ("held-out rows".to_owned(), hash));
    let benchmarks = resources.benchmarks.iter().filter_map(|benchmark| {
        Some((
            format!("rows of benchmark `{}`", benchmark.name),
            fingerprint(&benchmark.examples)?,
        ))
    });
    held_out.into_iter().chain(benchmarks).collect()
}

/// Loads the checkpoint in the folder `dir`. Returns its progress file, and true if the components'
/// states are small.
fn read(resources: &mut Resources, dir: &Path, step: u64) -> Result<(Saved, bool)> {
    let checkpoint = SealedFolder::open(dir)?;
    let saved = checkpoint.read(PROGRESS_FILE)?;
    let saved: Saved = serde_json::from_slice(&saved)
        .with_context(|| format!("its `{PROGRESS_FILE}` cannot be read"))?;
    let found = saved.progress.step;
    ensure!(
        found == step,
        "it is of step {found}, not {step} (give the folder its name back: `{}`)",
        name(found)
    );
    // A resume does not need these files, but users of the model do. Reading them verifies their
    // hashes.
    for companion in Tokenizer::FILES
        .into_iter()
        .filter(|name| checkpoint.contains(name))
    {
        checkpoint.read(companion)?;
    }
    if resources.policy.adapter().is_none() {
        checkpoint.read(CONFIG_FILE)?;
    }
    trained::restore(&checkpoint, &resources.policy, &mut resources.optimizer)?;
    let bytes = states::load(resources, &checkpoint, &saved.components, &saved.rewards)?;
    Ok((saved, RecoveryPoint::is_small(bytes)))
}
