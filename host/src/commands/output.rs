//! The file that `--out` names. It appears when it is whole, and an interrupted command leaves
//! nothing behind.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use capo_loader::watchdog;
use capo_system::files::{self, NewFile};
use capo_system::{folders, signals};

use crate::run::checkpoint;
use crate::terminal::say;

/// Path of the file while it is not whole.
static PARTIAL: OnceLock<PathBuf> = OnceLock::new();

/// Handles Ctrl-C: removes the file that is not whole, and ends the process.
fn interrupted() {
    if let Some(partial) = PARTIAL.get() {
        // If this fails, or the file is already whole, there is nothing left to do.
        let _ = fs::remove_file(partial);
    }
    watchdog::exit(130);
}

/// Creates the file at `path`; a process may create only one.
fn create(path: &Path) -> Result<NewFile> {
    signals::keeping_ignored(|| ctrlc::set_handler(interrupted))
        .context("cannot watch for Ctrl-C")?;
    let file = prepare(path)
        .and_then(|()| NewFile::create(path))
        .with_context(|| unwritable(path))?;
    let _ = PARTIAL.set(file.partial().to_owned());
    Ok(file)
}

/// The lines of the file that `--out` names; for `-` they go to standard output.
pub(super) struct Lines<'a> {
    path: &'a Path,
    file: Option<NewFile>,
}

impl<'a> Lines<'a> {
    pub(super) fn create(path: &'a Path) -> Result<Self> {
        Ok(Self {
            path,
            file: (path != Path::new("-")).then(|| create(path)).transpose()?,
        })
    }

    pub(super) fn write(&mut self, line: &str) -> Result<()> {
        match &mut self.file {
            Some(file) => writeln!(file, "{line}").with_context(|| unwritable(self.path))?,
            None => say(line),
        }
        Ok(())
    }

    /// Gives the file its name; the path of a file, or `None` for standard output.
    pub(super) fn finish(self) -> Result<Option<&'a Path>> {
        let Some(file) = self.file else {
            return Ok(None);
        };
        file.finish().with_context(|| unwritable(self.path))?;
        Ok(Some(self.path))
    }
}

/// Refuses a path that cannot be written, before the work is done.
pub(super) fn check(path: &Path) -> Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    {
        bail!(
            "`--out {}`: there is no folder `{}` (make it first)",
            path.display(),
            folder.display()
        );
    }
    prepare(path)
}

/// Refuses a path that cannot be replaced by a file, and removes what dead processes left beside
/// it.
pub(super) fn prepare(path: &Path) -> Result<()> {
    files::check_replaceable(path)?;
    if let Ok((folder, _)) = folders::split(path) {
        folders::sweep(&folder);
    }
    Ok(())
}

/// Refuses an output that would replace a file that is read, or one in a folder that is read: the
/// folder of the model, its run, or its data.
pub(super) fn check_not_read(
    flag: &str,
    out: &Path,
    model: &str,
    read: impl IntoIterator<Item = PathBuf>,
) -> Result<()> {
    let Ok(whole) = out.canonicalize() else {
        return Ok(());
    };
    let model = Path::new(model);
    let models = [Some(model), checkpoint::run_of(model)]
        .into_iter()
        .flatten()
        .map(Path::to_owned);
    let holding = models.chain(read).find(|input| {
        let input = input.canonicalize();
        input.is_ok_and(|input| whole.starts_with(input))
    });
    let Some(input) = holding else {
        return Ok(());
    };
    let shown = out.display();
    if input.is_dir() {
        bail!(
            "`{flag} {shown}` would replace a file of `{}`, which is read (choose another name)",
            input.display()
        );
    }
    bail!("`{flag} {shown}` is a file that is read, and would be replaced (choose another name)")
}

/// Beginning of the error message about a file that cannot be written; the reason follows it.
fn unwritable(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}
