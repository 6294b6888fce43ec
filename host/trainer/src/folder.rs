//! A model's folder, as Hugging Face lays it out.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use capo_system::files;
use capo_system::folders::{self, NewFolder};
use capo_system::manifest::SealedFolder;
use host_data::Tokenizer;
use host_model::{ModelFiles, Policy};

/// Refuses a path for a new folder if it exists or cannot be a folder. `flag` gave the path.
pub fn check_new(path: &Path, flag: &str) -> Result<()> {
    folders::split(path).with_context(|| format!("`{flag}` cannot be used"))?;
    let absent = path.symlink_metadata().is_err();
    ensure!(
        absent,
        "`{}` exists already (choose another `{flag}`)",
        path.display()
    );
    Ok(())
}

/// The tokenizer's files of a model, which are copied along with its weights. They are read when
/// the model is opened: a damaged file is then refused before any work is done, and a file that is
/// deleted later is not missed.
#[derive(Debug, Clone)]
pub struct Companions(Vec<(&'static str, Vec<u8>)>);

impl Companions {
    /// Reads the tokenizer's files among `files`.
    pub fn read(files: &ModelFiles) -> Result<Self> {
        let mut companions = Vec::new();
        for name in Tokenizer::FILES {
            if files.contains(name) {
                companions.push((name, files.read(name)?.into_owned()));
            }
        }
        Ok(Self(companions))
    }

    /// True if `folder` has exactly these tokenizer's files, with the same contents.
    pub fn are_in(&self, folder: &SealedFolder) -> Result<bool> {
        let others = ModelFiles::Checkpoint(folder.clone());
        Ok(Self::read(&others)?.0 == self.0)
    }
}

/// Writes `policy` with its `companions` and a model card. The folder appears at `path` once it is
/// complete.
pub fn write(
    path: &Path,
    policy: &Policy,
    companions: &Companions,
    card: Option<&str>,
) -> Result<()> {
    let (parent, name) = folders::split(path)?;
    let context = format!("cannot write `{}`", path.display());
    let new = NewFolder::in_folder(&parent).with_context(|| context.clone())?;
    fill(new.path(), policy, companions)?;
    if let Some(card) = card {
        files::write_atomic(&new.path().join("README.md"), card.as_bytes())?;
    }
    new.appear_as(&name).context(context)
}

/// Writes `policy` with its `companions` into a folder.
pub fn fill(folder: &Path, policy: &Policy, companions: &Companions) -> Result<()> {
    policy.save(folder)?;
    for (name, bytes) in &companions.0 {
        let path = folder.join(name);
        if let Some(parent) = path.parent().filter(|parent| *parent != folder) {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("cannot make `{}`", parent.display()))?;
        }
        files::write_atomic(&path, bytes)?;
    }
    Ok(())
}
