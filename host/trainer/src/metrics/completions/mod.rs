//! Log of a run's completions, if the config asks for it: lines in `completions.jsonl`, or one file
//! per step in `completions/`.

mod columns;
#[cfg(feature = "datasets")]
mod parquet;
mod table;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use capo_system::files;
use capo_system::folders;
use host_data::Tokenizer;

use super::journal::{self, Log};
use crate::config::{CompletionsFormat, LoggingConfig};
use crate::stages::record::StepRecord;
use crate::stages::rollout::RolloutRecord;
pub use table::{Column, Table};

/// Name of the JSON Lines file in a run's directory.
pub const COMPLETIONS_FILE: &str = "completions.jsonl";
/// Name of the folder with one file per step.
pub const FOLDER: &str = "completions";

/// Writes completions in the configured format.
#[derive(Debug)]
pub struct Completions {
    /// Folder for one file per step.
    folder: PathBuf,
    log: Log,
    /// The warning that the log has lost lines, until it is taken.
    lost: Option<String>,
    logging: LoggingConfig,
    /// Interval of logged steps, a multiple of the steps that share a rollout; `None` logs nothing.
    every: Option<u64>,
}

impl Completions {
    /// An empty log for a run in `dir`, where `steps_per_rollout` steps share a rollout.
    pub fn new(dir: &Path, logging: &LoggingConfig, steps_per_rollout: u64) -> Self {
        let uses = steps_per_rollout.max(1);
        Self {
            folder: dir.join(FOLDER),
            log: Log::open(dir.join(COMPLETIONS_FILE)),
            lost: None,
            every: logging
                .log_completions
                .then(|| logging.completions_steps.max(1).div_ceil(uses) * uses),
            logging: logging.clone(),
        }
    }

    /// Prepares the log for a resume after `step`: removes completions of later steps, and
    /// leftovers of an interruption.
    pub fn cut(&mut self, step: u64) -> Result<()> {
        let path = self.log.path().to_owned();
        journal::cut(&path, step)?;
        self.log = Log::open(path);
        self.cut_files(step)
            .with_context(|| format!("cannot take `{}` up again", self.folder.display()))
    }

    /// The warning that the log has lost lines, once.
    pub fn lost(&mut self) -> Option<String> {
        self.lost.take()
    }

    fn cut_files(&self, step: u64) -> Result<()> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        folders::clean(&self.folder)?;
        for entry in entries {
            let path = entry?.path();
            if step_of(&path).is_some_and(|found| found > step) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// True if the log takes the completions of a rollout that was sampled after `sampled_at`
    /// steps. They are logged at the first use of the rollout, `iteration` 0.
    fn is_due(&self, sampled_at: u64, iteration: u64) -> bool {
        iteration == 0
            && self
                .every
                .is_some_and(|every| sampled_at.is_multiple_of(every))
    }

    /// True if the log takes what components record for each token in such a step. The arguments
    /// are those of `is_due`.
    pub fn takes_arrays(&self, sampled_at: u64, iteration: u64) -> bool {
        self.logging.log_tokens && self.is_due(sampled_at, iteration)
    }

    /// Writes the completions of a step of `rollout`, if they are due.
    pub fn step(
        &mut self,
        record: &StepRecord,
        rollout: &RolloutRecord,
        tokenizer: &Tokenizer,
    ) -> Result<()> {
        if !self.is_due(record.batch.sampled().sampled_at, record.info.iteration) {
            return Ok(());
        }
        self.write(
            record.info.step + 1,
            &columns::table(record, rollout, &self.logging, tokenizer)?,
        )
    }

    fn write(&mut self, step: u64, table: &Table) -> Result<()> {
        match self.logging.completions_format {
            CompletionsFormat::Jsonl => {
                for line in table.lines()? {
                    if self.log.append(&line)? {
                        self.lost = Some(self.log.loss(None));
                    }
                }
                Ok(())
            }
            CompletionsFormat::Parquet => {
                fs::create_dir_all(&self.folder).with_context(|| {
                    format!("cannot make the folder `{}`", self.folder.display())
                })?;
                files::write_atomic(&self.folder.join(name(step)), &parquet::bytes(table)?)
            }
        }
    }
}

#[cfg(not(feature = "datasets"))]
mod parquet {
    pub fn bytes(_: &super::Table) -> anyhow::Result<Vec<u8>> {
        Err(host_data::features::missing("parquet", "datasets"))
    }
}

fn name(step: u64) -> String {
    format!("step-{step:06}.parquet")
}

/// The step in the name of a completions file.
pub fn step_of(path: &Path) -> Option<u64> {
    let found = path.file_name()?.to_str()?;
    let step = found
        .strip_prefix("step-")?
        .strip_suffix(".parquet")?
        .parse()
        .ok()?;
    (name(step) == found).then_some(step)
}
