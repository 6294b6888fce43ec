//! The file that `--out` names. It appears when it is whole, and an interrupted command leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use capo_loader::files::{self, NewFile};
use capo_loader::watchdog;

/// Path of the file while it is not whole.
static PARTIAL: OnceLock<PathBuf> = OnceLock::new();

/// Creates the file at `path`; a process may create only one.
pub(super) fn create(path: &Path) -> Result<NewFile> {
    let interrupted = || {
        if let Some(partial) = PARTIAL.get() {
            // If this fails, or the file is already whole, there is nothing left to do.
            let _ = fs::remove_file(partial);
        }
        watchdog::exit(130);
    };
    ctrlc::set_handler(interrupted).context("cannot watch for Ctrl-C")?;
    let file = NewFile::create(path).with_context(|| unwritable(path))?;
    let _ = PARTIAL.set(file.partial().to_owned());
    Ok(file)
}

/// Refuses a path that cannot be written, before the work is done.
pub(super) fn check(path: &Path) -> Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        bail!("`--out {}`: there is no folder `{}` (make it first)", path.display(), folder.display());
    }
    files::check_replaceable(path)
}

/// Refuses an output that is one of the files that are read, because it would replace that file.
pub(super) fn check_not_read<'a>(flag: &str, out: &Path, read: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let Ok(whole) = out.canonicalize() else { return Ok(()) };
    match read.into_iter().find(|input| input.canonicalize().is_ok_and(|input| input == whole)) {
        None => Ok(()),
        Some(_) => {
            bail!("`{flag} {}` is a file that is read, and would be replaced (choose another name)", out.display())
        }
    }
}

/// Beginning of the error message about a file that cannot be written; the reason follows it.
pub(super) fn unwritable(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}
