//! Checkpoints of a training that is not done. They are in `OUTPUT.partial`, beside the model to
//! be, and the same command goes on from the newest, which is the only one that is kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_system::folders::{self, NewFolder};
use capo_system::lock::Lock;
use capo_system::manifest::SealedFolder;
use capo_system::{files, terminal};
use host_model::Policy;
use host_model::optim::Optimizer;
use serde::{Deserialize, Serialize};

use crate::folder::Companions;
use crate::run::checkpoint::{FOLDER, name, newest, path, steps};
use crate::run::{settings, trained};

const PROGRESS_FILE: &str = "progress.json";

/// Progress of a training.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// Number of steps done.
    pub(super) step: u64,
    /// Sum of the losses since the last line about them, nats.
    pub(super) loss: f64,
    /// Number of steps since that line.
    pub(super) steps: u32,
}

/// Contents of `progress.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    progress: Progress,
    /// All settings, as TOML.
    settings: String,
    /// Hash of the rows; `None` for generated data.
    data: Option<String>,
}

/// The checkpoints of one training.
pub(super) struct Checkpoints {
    dir: PathBuf,
    /// All settings, as TOML.
    settings: String,
    /// Hash of the rows; `None` for generated data.
    data: Option<String>,
    /// Files that are copied along with the weights.
    companions: Companions,
    /// Held as soon as the folder is there.
    lock: Option<Lock>,
}

impl Checkpoints {
    /// The checkpoints of a training that writes its model to `output`.
    pub(super) fn of(
        output: &Path,
        settings: String,
        data: Option<&str>,
        companions: Companions,
    ) -> Result<Self> {
        let (parent, mut name) = folders::split(output)?;
        name.add_extension("partial");
        Ok(Self {
            dir: parent.join(name),
            settings,
            data: data.map(str::to_owned),
            companions,
            lock: None,
        })
    }

    /// True if `dir` has the checkpoints of a training.
    pub(super) fn are_in(dir: &Path) -> bool {
        let is_named = dir.extension().is_some_and(|ending| ending == "partial");
        is_named && !dir.join(FOLDER).is_symlink() && newest(dir).is_ok_and(|step| step > 0)
    }

    /// Overwrites weights and optimizer with those of the newest checkpoint, and returns its
    /// progress; `None` without a checkpoint.
    pub(super) fn take_up(
        &mut self,
        policy: &Policy,
        optimizer: &mut Optimizer,
    ) -> Result<Option<Progress>> {
        if self.dir.symlink_metadata().is_err() {
            return Ok(None);
        }
        let shown = self.dir.display();
        ensure!(
            Self::are_in(&self.dir),
            "`{shown}` exists and has no checkpoint of `host sft` (remove it, or choose another \
             `--output-dir`)"
        );
        let lock = Lock::take(&self.dir)?;
        folders::clean(&self.dir.join(FOLDER))?;
        let step = newest(&self.dir)?;
        let path = path(&self.dir, step);
        let progress = self
            .read(&SealedFolder::open(&path)?, policy, optimizer)
            .with_context(|| {
                format!(
                    "cannot go on from `{}` (remove `{shown}` to begin anew)",
                    path.display()
                )
            })?;
        self.prune(step)?;
        self.lock = Some(lock);
        Ok(Some(progress))
    }

    fn read(
        &self,
        checkpoint: &SealedFolder,
        policy: &Policy,
        optimizer: &mut Optimizer,
    ) -> Result<Progress> {
        let saved: Saved = serde_json::from_slice(&checkpoint.read(PROGRESS_FILE)?)
            .with_context(|| format!("its `{PROGRESS_FILE}` cannot be read"))?;
        let changed = settings::changes(&saved.settings, &self.settings)?;
        if !changed.is_empty() {
            bail!(
                "it was made with other settings: {} (put them back)",
                changed.join(", ")
            );
        }
        ensure!(
            saved.data == self.data,
            "it was made with other rows (put them back)"
        );
        ensure!(
            self.companions.are_in(checkpoint)?,
            "it was made with another tokenizer (put its files back)"
        );
        trained::restore(checkpoint, policy, optimizer)?;
        Ok(saved.progress)
    }

    /// Writes a checkpoint, and deletes the one before it.
    pub(super) fn save(
        &mut self,
        progress: &Progress,
        policy: &Policy,
        optimizer: &Optimizer,
    ) -> Result<()> {
        let step = progress.step;
        self.write(progress, policy, optimizer).with_context(|| {
            let path = path(&self.dir, step);
            format!("cannot write the checkpoint `{}`", path.display())
        })?;
        self.prune(step)
    }

    /// Writes a checkpoint. The first one appears together with its folder.
    fn write(&mut self, progress: &Progress, policy: &Policy, optimizer: &Optimizer) -> Result<()> {
        let saved = Saved {
            progress: progress.clone(),
            settings: self.settings.clone(),
            data: self.data.clone(),
        };
        let step = progress.step;
        if self.lock.is_some() {
            let new = NewFolder::in_folder(&self.dir.join(FOLDER))?;
            self.fill(new.path(), &saved, policy, optimizer)?;
            new.appear_as(Path::new(&name(step)))?;
            return Ok(());
        }
        let (parent, own) = folders::split(&self.dir)?;
        let new = NewFolder::in_folder(&parent)?;
        let lock = Lock::take(new.path())?;
        let inner = path(new.path(), step);
        fs::create_dir_all(&inner)?;
        self.fill(&inner, &saved, policy, optimizer)?;
        new.appear_as(&own)?;
        self.lock = Some(lock);
        Ok(())
    }

    /// Writes the files of a checkpoint into `dir`.
    fn fill(
        &self,
        dir: &Path,
        saved: &Saved,
        policy: &Policy,
        optimizer: &Optimizer,
    ) -> Result<()> {
        trained::write(dir, policy, &self.companions, optimizer)?;
        let progress = serde_json::to_vec_pretty(saved)?;
        files::write_atomic(&dir.join(PROGRESS_FILE), &progress)?;
        SealedFolder::seal(dir)
    }

    /// Deletes all checkpoints but that of step `kept`.
    fn prune(&self, kept: u64) -> Result<()> {
        let old = steps(&self.dir)?.into_iter().filter(|step| *step != kept);
        old.into_iter()
            .try_for_each(|step| folders::delete(&path(&self.dir, step)))
    }

    /// Removes the folder, once the model is written. A failure is a warning.
    pub(super) fn remove(&mut self) {
        if self.lock.take().is_some()
            && let Err(error) = folders::delete(&self.dir)
        {
            terminal::warn(&format!("{error:#} (it is no longer needed)"));
        }
    }
}
