//! A run's directory. It is created as a whole, locked by the process that works in it, and cleaned
//! after an interruption.

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_loader::{LoadedPlugin, batch_file};
use capo_plugin::Inputs;
use capo_system::files;
use capo_system::folders::{self, NewFolder};
use capo_system::lock::{self, Lock};
use capo_system::terminal::word;

use super::disk::fits_disk;
use super::{CONFIG_FILE, METRICS_FILE, Run, checkpoint, provenance};
use crate::Error;
use crate::metrics::completions::{self, COMPLETIONS_FILE};

/// Beginning of the names of TensorBoard's files.
const EVENTS: &str = "events.out.tfevents";
/// Name of the file in a run's directory with the path of the folder that holds the run's batches.
/// A resume removes later batches only if the folder is this one.
const BATCHES_FILE: &str = "batches";
/// Parent folder of runs for which no folder is given.
const RUNS: &str = "runs";

/// Refuses a folder for a new run that exists or has no name.
pub fn check_free(dir: &Path) -> Result<()> {
    if dir.as_os_str().is_empty() {
        bail!(
            "`train.output_dir` is empty (name a folder, or leave it out: the run goes to \
             `{RUNS}/`)"
        );
    }
    if dir.symlink_metadata().is_ok() && !is_blank(dir) {
        return Err(exists_already(dir).into());
    }
    let (parent, _) = folders::split(dir)
        .context("`train.output_dir` cannot be used (name a folder that does not exist yet)")?;
    // Folders that are created on the way to `..` would remain.
    let climbs = parent.components().any(|part| part == Component::ParentDir);
    ensure!(
        !climbs || parent.is_dir(),
        "`train.output_dir` `{}` goes through folders that do not exist and out of them again by \
         `..` (write it without)",
        dir.display()
    );
    Ok(())
}

fn exists_already(dir: &Path) -> Error {
    let resume = if dir.join(provenance::FILE).is_file() {
        format!(", or go on with `--resume {}`", word(dir))
    } else {
        String::new()
    };
    Error::directory_taken(format!(
        "`train.output_dir` `{}` exists already (choose another{resume})",
        dir.display()
    ))
}

/// True if the run in `dir` has done no step and no process works in it. A new run may then replace
/// it without loss.
fn is_blank(dir: &Path) -> bool {
    dir.symlink_metadata().is_ok_and(|found| found.is_dir())
        && dir.join(provenance::FILE).is_file()
        && has_only_files_of_runs(dir)
        && files::text(&dir.join(METRICS_FILE))
            .is_ok_and(|metrics| metrics.lines().all(is_before_steps))
        && fs::read_dir(dir.join(checkpoint::FOLDER))
            .map_or(true, |mut checkpoints| checkpoints.next().is_none())
        && lock::is_at_work(dir).is_ok_and(|is_at_work| !is_at_work)
}

/// True if `dir` holds nothing but what a run writes before its first step.
fn has_only_files_of_runs(dir: &Path) -> bool {
    const FILES: [&str; 6] = [
        CONFIG_FILE,
        METRICS_FILE,
        COMPLETIONS_FILE,
        BATCHES_FILE,
        provenance::FILE,
        lock::FILE,
    ];
    let Ok(mut entries) = fs::read_dir(dir) else {
        return false;
    };
    entries.all(|entry| {
        let name = entry.map(|entry| entry.file_name());
        name.is_ok_and(|name| {
            name.to_str().is_some_and(|name| {
                FILES.contains(&name) || name == checkpoint::FOLDER || name.starts_with(EVENTS)
            })
        })
    })
}

/// True for the line of metrics of step 0.
fn is_before_steps(line: &str) -> bool {
    let line: Option<serde_json::Value> = serde_json::from_str(line).ok();
    line.is_some_and(|line| line["step"].as_u64() == Some(0))
}

/// A run's directory, and the lock by which this process holds it.
pub struct Locked {
    pub path: PathBuf,
    pub lock: Lock,
}

/// Directory of a new run called `name` for which no folder is given.
pub fn free(name: &str) -> PathBuf {
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    let mut dirs = std::iter::once(name.to_owned())
        .chain(numbered)
        .map(|name| Path::new(RUNS).join(name));
    dirs.find(|dir| dir.symlink_metadata().is_err())
        .unwrap_or_default()
}

/// Creates the directory of a new run, with its settings and initial plugins: `dir`, or else
/// `runs/NAME`, `runs/NAME-2` and so on. It appears as a whole, locked by this process.
pub fn make(
    dir: Option<&Path>,
    name: &str,
    settings: &str,
    plugins: Vec<LoadedPlugin>,
    checkpoint: u64,
) -> Result<Locked> {
    let (parent, given) = match dir {
        Some(dir) => folders::split(dir)?,
        None => (RUNS.into(), name.into()),
    };
    let first = parent.join(&given);
    let (new, lock) = prepare(&parent, settings, plugins, checkpoint)
        .with_context(|| cannot_make(dir.unwrap_or(&first)))?;
    if let Some(blank) = dir.filter(|dir| is_blank(dir)) {
        folders::delete(blank)?;
    }
    for number in 1_u32.. {
        let name = if number == 1 {
            given.clone()
        } else {
            format!("{name}-{number}").into()
        };
        let path = dir.map_or_else(|| parent.join(&name), Path::to_owned);
        match new.appear_as(&name) {
            Ok(()) => return Ok(Locked { path, lock }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if dir.is_some() {
                    return Err(exists_already(&path).into());
                }
            }
            Err(error) => return Err(error).with_context(|| cannot_make(&path)),
        }
    }
    unreachable!("there are more numbers than directories")
}

fn cannot_make(dir: &Path) -> String {
    format!("cannot make the run directory `{}`", dir.display())
}

/// A locked folder in `parent` with the files of a new run, which is not yet in its place.
fn prepare(
    parent: &Path,
    settings: &str,
    plugins: Vec<LoadedPlugin>,
    checkpoint: u64,
) -> Result<(NewFolder, Lock)> {
    fits_disk(parent, checkpoint, 1)?;
    let new = NewFolder::in_folder(parent)?;
    let dir = new.path();
    let lock = Lock::take(dir)?;
    files::write_atomic(&dir.join(CONFIG_FILE), settings.as_bytes())?;
    files::write_atomic(&dir.join(METRICS_FILE), b"")?;
    provenance::start(dir, plugins, settings.to_owned())?;
    Ok((new, lock))
}

/// Locks the directory of a run that continues, and removes leftovers of an interruption.
pub fn reopen(dir: &Path) -> Result<Lock> {
    if !dir.join(CONFIG_FILE).is_file() {
        if let Some(run) = checkpoint::run_of(dir) {
            bail!(
                "`{}` is a checkpoint of the run `{}` (`--resume {}` goes on from the newest, of \
                 step {})",
                dir.display(),
                run.display(),
                word(run),
                checkpoint::newest(run)?
            );
        }
        bail!(
            "`{}` is not a run directory: it has no `{CONFIG_FILE}` (give the folder that `host \
             train` printed)",
            dir.display()
        );
    }
    let checkpoints = dir.join(checkpoint::FOLDER);
    for folder in [&checkpoints, &dir.join(completions::FOLDER)] {
        ensure!(
            !folder.is_symlink(),
            "`{}` is a symbolic link, and a run changes nothing outside its directory (put the \
             folder itself in its place)",
            folder.display()
        );
    }
    let lock = Lock::take(dir)?;
    if let Some(parent) = dir.canonicalize()?.parent() {
        folders::sweep(parent);
    }
    folders::clean(dir)?;
    if checkpoints.is_dir() {
        folders::clean(&checkpoints)?;
    }
    Ok(lock)
}

impl Run {
    /// Writes the batch of every following step to `dir`, including the last layer and the
    /// rollout's context.
    pub fn dump_batches(&mut self, dir: Option<&Path>) -> Result<()> {
        if let Some(dir) = dir {
            batch_file::prepare_folder(dir, self.progress.step, &self.dir.join(BATCHES_FILE))?;
            let inputs = &mut self.resources.inputs;
            *inputs =
                inputs.with(Inputs::LAST_LAYER | Inputs::ROLLOUT_CONTEXT | Inputs::SAMPLER_TOP_K);
            self.dump = Some(dir.to_owned());
        }
        Ok(())
    }
}
