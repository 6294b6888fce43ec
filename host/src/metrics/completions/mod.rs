//! Completions that a run writes down, where the config asks for them: `completions.jsonl`, or a file per step in `completions/`.

mod parquet;
mod table;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use capo_loader::files;
use capo_loader::folders;

use super::journal::{Expected, Gap, Journal, Mark, ranges};
use crate::config::{CompletionsFormat, LoggingConfig};
pub use table::{Column, Table};

/// The file of lines, in a run's directory.
pub const COMPLETIONS_FILE: &str = "completions.jsonl";
/// The folder of files per step.
pub const FOLDER: &str = "completions";

/// Where completions go.
#[derive(Debug)]
pub struct Completions {
    folder: PathBuf,
    journal: Journal,
    format: CompletionsFormat,
    /// Of every so many steps, a multiple of those that use a rollout; none where nothing is logged.
    every: Option<u64>,
}

impl Completions {
    /// None so far, of a run in `dir` whose rollouts are used by `steps_per_rollout` steps.
    pub fn new(dir: &Path, logging: &LoggingConfig, steps_per_rollout: u64) -> Self {
        let uses = steps_per_rollout.max(1);
        Self {
            folder: dir.join(FOLDER),
            journal: Journal::new(&dir.join(COMPLETIONS_FILE)),
            format: logging.completions_format,
            every: logging.log_completions.then(|| logging.completions_steps.max(1).div_ceil(uses) * uses),
        }
    }

    /// Takes them up after `step`, where the file of lines was at `mark`, and removes later ones. Returns the gap, if some are missing.
    pub fn resume(&mut self, step: u64, mark: Option<&Mark>) -> Result<Option<Gap>> {
        let is_lines = self.format == CompletionsFormat::Jsonl;
        let logged = if is_lines && self.every.is_some() { step } else { 0 };
        let expected = Expected { step: logged, every: self.every.unwrap_or(1), once: false };
        let (journal, gap) = Journal::resume(self.journal.path(), mark, expected)?;
        self.journal = journal;
        let kept = self.cut(step).with_context(|| format!("cannot take `{}` up again", self.folder.display()))?;
        let Some(every) = self.every.filter(|_| !is_lines) else { return Ok(gap) };
        let missing = ranges((1..=step).step_by(every as usize).filter(|step| !kept.contains(step)), every);
        let what = format!("no file of step {missing}");
        let gone = (!missing.is_empty()).then(|| Gap { file: FOLDER.to_owned(), step, what, kept: None });
        Ok(gap.or(gone))
    }

    /// Removes files of steps after `step`, and what an interruption left; returns the steps of the others.
    fn cut(&self, step: u64) -> Result<Vec<u64>> {
        let mut kept = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(kept),
            entries => entries?,
        };
        folders::clean(&self.folder)?;
        for entry in entries {
            let path = entry?.path();
            match step_of(&path) {
                Some(found) if found > step => fs::remove_file(&path)?,
                found => kept.extend(found),
            }
        }
        Ok(kept)
    }

    /// True if those of a rollout are logged that was sampled when `sampled_at` steps were done.
    pub fn is_due(&self, sampled_at: u64) -> bool {
        self.every.is_some_and(|every| sampled_at.is_multiple_of(every))
    }

    /// How far the file of lines has come: for the checkpoint.
    pub fn mark(&self) -> Mark {
        self.journal.mark()
    }

    /// Writes the completions of `step`.
    pub fn write(&mut self, step: u64, table: &Table) -> Result<()> {
        match self.format {
            CompletionsFormat::Jsonl => table.lines()?.iter().try_for_each(|line| self.journal.append(line)),
            CompletionsFormat::Parquet => {
                fs::create_dir_all(&self.folder)
                    .with_context(|| format!("cannot make the folder `{}`", self.folder.display()))?;
                files::write_atomic(&self.folder.join(name(step)), &parquet::bytes(table)?)
            }
        }
    }
}

fn name(step: u64) -> String {
    format!("step-{step:06}.parquet")
}

/// The step that a file of completions is of.
pub fn step_of(path: &Path) -> Option<u64> {
    let found = path.file_name()?.to_str()?;
    let step = found.strip_prefix("step-")?.strip_suffix(".parquet")?.parse().ok()?;
    (name(step) == found).then_some(step)
}
