//! A model's folder, as Hugging Face lays it out.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use capo_loader::files;
use capo_loader::folders::{self, NewFolder};
use capo_loader::memory;

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
        files::write_atomic(&folder.join(file), &files.read(file)?)?;
    }
    Ok(())
}

/// Refuses a disk without room for `count` checkpoints of `bytes` in `dir`, or in its nearest existing ancestor. A disk of unknown free space
/// is accepted.
pub fn check_room(dir: &Path, bytes: u64, count: u64) -> Result<()> {
    let there = dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let Ok(disk) = rustix::fs::statvfs(there) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    ensure!(
        bytes.saturating_mul(count) <= free,
        "a checkpoint of this run takes {}{}, and {} are free on the disk of `{}` (make room, or choose another `train.output_dir`)",
        memory::text(bytes.into()),
        if count > 1 { ", the last one as much" } else { "" },
        memory::text(free.into()),
        dir.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent/run");
        check_room(&absent, 1, 2).unwrap();
        for (count, expected) in [(1, ", and "), (2, ", the last one as much, and ")] {
            let sentence = check_room(&absent, u64::MAX, count).unwrap_err().to_string();
            let expected = format!("a checkpoint of this run takes 16777216.0 TiB{expected}");
            assert!(sentence.starts_with(&expected), "{sentence}");
        }
    }
}
