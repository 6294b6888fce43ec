//! A model's folder, as Hugging Face lays it out.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use capo_loader::files;
use capo_loader::folders::{self, NewFolder};

use crate::data::Tokenizer;
use crate::model::{ModelFiles, Policy};

/// Refuses a path for a new folder that cannot be one or that exists; `flag` named it.
pub fn check_new(path: &Path, flag: &str) -> Result<()> {
    folders::split(path).with_context(|| format!("`{flag}` cannot be used"))?;
    let absent = path.symlink_metadata().is_err();
    ensure!(absent, "`{}` exists already (choose another `{flag}`)", path.display());
    Ok(())
}

/// Writes `policy` with the tokenizer's files among `files`, and a model card. The folder appears at `path` when it is whole.
pub fn write(path: &Path, policy: &Policy, files: &ModelFiles, card: Option<&str>) -> Result<()> {
    let (parent, name) = folders::split(path)?;
    let cannot = || format!("cannot write `{}`", path.display());
    let new = NewFolder::in_folder(&parent).with_context(cannot)?;
    fill(new.path(), policy, files)?;
    if let Some(card) = card {
        files::write_atomic(&new.path().join("README.md"), card.as_bytes())?;
    }
    new.appear_as(&name).with_context(cannot)
}

/// Writes `policy` with the tokenizer's files among `files` into a folder.
pub fn fill(folder: &Path, policy: &Policy, files: &ModelFiles) -> Result<()> {
    policy.save(folder)?;
    for file in Tokenizer::FILES.into_iter().filter(|name| files.contains(name)) {
        let path = folder.join(file);
        if let Some(parent) = path.parent().filter(|parent| *parent != folder) {
            std::fs::create_dir_all(parent).with_context(|| format!("cannot make `{}`", parent.display()))?;
        }
        files::write_atomic(&path, &files.read(file)?)?;
    }
    Ok(())
}
