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

use anyhow::{Context, Result, ensure};
use capo_system::folders::{self, NewFolder};
use capo_system::manifest::SealedFolder;
use capo_system::{files, terminal};
use host_data::{Tokenizer, fingerprint};
use host_model::CONFIG_FILE;
use serde::{Deserialize, Serialize};

use super::disk::fits_disk;
use super::progress::{Progress, RecoveryPoint, States};
use super::{Resources, Run, best, provenance, states, trained};
use crate::Error;
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

/// The checkpoint that is due at the end of a rollout. A lasting one is due every
/// `train.save_steps` steps, at the end of the run or of this process, and at the best evaluation.
/// Otherwise one by time is due if a kill could cost the work of `at_risk`.
pub fn due(run: &Run, stopped: bool, at_risk: Duration) -> Option<Due> {
    if !run.resources.saves {
        return None;
    }
    let step = run.progress.step;
    let train = &run.config().train;
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

/// True if a checkpoint by time is due: it comes every `minutes` of work, and a kill could cost the
/// work of `at_risk`. 0 is never.
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

/// True if the checkpoint of `step` of the run in `dir` is a checkpoint by time.
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

/// Writes the files of the checkpoint that is due at the current step. `None` if none is due, or if
/// it exists. A checkpoint by time is refused if it would leave no room for the one at the end of
/// the run.
pub fn write(run: &mut Run, due: Option<Due>) -> Result<Option<Written>> {
    let Some(due) = due.filter(|_| !dir(run).exists()) else {
        return Ok(None);
    };
    let started = Instant::now();
    if due == Due::ByTime {
        // An earlier checkpoint by time is deleted once this one is in place.
        let replaces = steps(&run.dir)?
            .into_iter()
            .any(|step| is_by_time(&run.dir, step));
        let copies = if replaces { 1 } else { 2 };
        fits_disk(&run.dir, run.resources.checkpoint_bytes(), copies)?;
    }
    let states = States::save(&run.resources)?;
    let written = write_point(run, &RecoveryPoint::of(run), &states, due)?;
    run.observers.metrics.add_time("checkpoint", started);
    Ok(Some(written))
}

/// Moves what was `written` into place. A failure is an error, but for a checkpoint by time it is
/// returned as a warning.
pub fn finish(
    run: &Run,
    due: Option<Due>,
    written: Result<Option<Written>>,
) -> Result<Option<String>> {
    let done = written.and_then(|written| match written {
        Some(written) => appear(run, &written),
        None => Ok(()),
    });
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
            let written = write_point(run, &point, &states, Due::Lasting)?;
            appear(run, &written)
        }
        None => Ok(()),
    }
}

fn write_point(run: &Run, point: &RecoveryPoint, states: &States, due: Due) -> Result<Written> {
    let folder = run.dir.join(FOLDER);
    let new = NewFolder::in_folder(&folder)
        .with_context(|| format!("cannot make a checkpoint in `{}`", folder.display()))?;
    trained::write(
        new.path(),
        &run.resources.policy,
        &run.resources.companions,
        &run.resources.optimizer,
    )?;
    states.write(new.path())?;
    let saved = Saved {
        progress: point.progress.clone(),
        components: ids(&states.components),
        rewards: ids(&states.rewards),
        by_time: due == Due::ByTime,
        data: run.resources.dataset.fingerprint().map(str::to_owned),
        measured: measured(&run.resources),
    };
    files::write_atomic(
        &new.path().join(PROGRESS_FILE),
        &serde_json::to_vec_pretty(&saved)?,
    )?;
    SealedFolder::seal(new.path())?;
    Ok(Written {
        step: point.progress.step,
        new,
    })
}

fn ids(states: &[(String, Vec<u8>)]) -> Vec<String> {
    states.iter().map(|(id, _)| id.clone()).collect()
}

/// Moves the checkpoint into place, and deletes the checkpoints that it replaces and those beyond
/// `train.save_total_limit`.
fn appear(run: &Run, written: &Written) -> Result<()> {
    let step = written.step;
    let appeared = written.new.appear_as(Path::new(&name(step)));
    appeared.with_context(|| {
        let path = path(&run.dir, step);
        format!("cannot rename a checkpoint to `{}`", path.display())
    })?;
    run.resources.watchdog.place().saved(step);
    prune(&run.dir, &run.resources.config, &run.progress)
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
    let newest = path(dir, newest);
    let saved = progress(&newest).with_context(|| cannot_be_used(&newest))?;
    let Some(best) = saved.progress.best else {
        return Ok(None);
    };
    if !path(dir, best.step).is_dir() {
        terminal::warn(&format!(
            "the run `{}` has no longer its best checkpoint, of step {}; the newest is taken",
            dir.display(),
            best.step
        ));
        return Ok(None);
    }
    Ok(Some(best.step))
}

/// True if `dir` holds a run.
fn is_run(dir: &Path) -> bool {
    dir.join(super::CONFIG_FILE).is_file()
        && (dir.join(FOLDER).is_dir() || dir.join(provenance::FILE).is_file())
}

/// The folder of the run, if `dir` is a run or one of its checkpoints.
pub fn run_of(dir: &Path) -> Option<&Path> {
    if is_run(dir) {
        return Some(dir);
    }
    let folder = dir.parent()?;
    let run = folder.parent()?;
    (folder.file_name()? == FOLDER && is_run(run)).then_some(run)
}

/// A checkpoint of the run `model` and its step: that of `step`, or else the best, or else the
/// newest. `None` if `model` is not a run.
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

/// Deletes checkpoints by time, unless they are the newest checkpoint. Of the others, deletes the
/// oldest beyond `train.save_total_limit`, but never the best or the newest.
fn prune(dir: &Path, config: &Config, progress: &Progress) -> Result<()> {
    let limit = config.train.save_total_limit;
    let steps = steps(dir)?;
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
    for step in replaced.chain(old) {
        folders::delete(&path(dir, step))?;
    }
    Ok(())
}

/// State of a resumed run besides its resources. The default is a run's beginning.
pub struct Loaded {
    pub progress: Progress,
    /// True if a recovery point holds the components' states.
    pub remembers: bool,
    /// Descriptions of data that differ from those of the checkpoint.
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
    let (saved, remembers) = read(resources, &path, step).with_context(|| cannot_be_used(&path))?;
    let changed = changed_rows(resources, &saved);
    if let Some(rows) = changed.first().filter(|_| !allow_changes) {
        let message = format!(
            "the {} are not those that the checkpoint of step {step} was made with{} (put them \
             back, or take them with `--allow-changed-config`)",
            rows.name, rows.now
        );
        return Err(Error::changed(message).into());
    }
    // If the process was killed before pruning, one checkpoint too many exists.
    prune(dir, &resources.config, &saved.progress)?;
    let changed = changed
        .into_iter()
        .map(|rows| format!("the {}{}", rows.name, rows.now))
        .collect();
    let mut progress = saved.progress;
    if progress.completions == 0 {
        let each = resources.config.rollout.num_generations as u64;
        progress.completions = progress.prompts.saturating_mul(each);
    }
    // A best value of another metric does not count.
    let measure = resources.config.train.measure_of_best();
    progress.best = progress
        .best
        .filter(|best| measure.is_some() && (best.measure.is_none() || best.measure == measure));
    Ok(Loaded {
        progress,
        remembers,
        changed,
    })
}

fn cannot_be_used(checkpoint: &Path) -> Error {
    Error::unusable_checkpoint(format!(
        "checkpoint `{}` cannot be used",
        checkpoint.display()
    ))
}

/// Rows of a dataset that differ from those of a checkpoint.
struct ChangedRows {
    name: String,
    /// Description of the rows now, after a colon; empty if there is none.
    now: String,
}

fn changed_rows(resources: &Resources, saved: &Saved) -> Vec<ChangedRows> {
    let mut changed = Vec::new();
    let now = resources.dataset.fingerprint();
    if saved.data.is_some() && saved.data.as_deref() != now {
        changed.push(ChangedRows {
            name: "training data".to_owned(),
            now: format!(": {}", resources.dataset.describe()),
        });
    }
    let now = measured(resources);
    for (name, hash) in &saved.measured {
        if now.get(name).is_some_and(|now| now != hash) {
            changed.push(ChangedRows {
                name: name.clone(),
                now: String::new(),
            });
        }
    }
    changed
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
/// states are small enough for recovery points.
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
    for companion in Tokenizer::FILES {
        if checkpoint.contains(companion) {
            checkpoint.read(companion)?;
        }
    }
    if resources.policy.adapter().is_none() {
        checkpoint.read(CONFIG_FILE)?;
    }
    trained::restore(&checkpoint, &resources.policy, &mut resources.optimizer)?;
    let bytes = states::load(resources, &checkpoint, &saved.components, &saved.rewards)?;
    Ok((saved, RecoveryPoint::is_small(bytes)))
}
