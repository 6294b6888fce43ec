//! Folders that survive interruptions: one rename makes a whole folder appear, and one rename
//! removes it.
//!
//! The name of an unfinished folder begins with [`PARTIAL`] or [`DELETED`]. The next process
//! removes unfinished folders and files ([`files::NewFile`]) of dead processes. Several processes
//! may work in one parent folder, so each holds a lock on its own folder or file. The kernel
//! releases the lock when the process ends.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::files::{self, PARTIAL, folder};

/// Prefix of the names of folders that are being deleted.
pub const DELETED: &str = ".deleted-capo-";

/// Name of the lock file of an unfinished folder.
const LOCK: &str = "lock";
/// Name of the unfinished folder itself, beside its lock file.
const WHOLE: &str = "whole";

/// An unfinished folder. Dropped before [`Self::appear_as`], it leaves nothing behind.
#[derive(Debug)]
pub struct NewFolder {
    parent: PathBuf,
    whole: PathBuf,
    _workshop: Workshop,
}

/// A temporary folder that other processes leave alone, because this process holds its lock.
#[derive(Debug)]
struct Workshop {
    // Fields are dropped in order: the lock file is closed before the folder that contains it is
    // removed.
    lock: File,
    folder: TempDir,
}

impl Workshop {
    /// Makes one in the folder `parent`, with a name that begins with `prefix`.
    fn in_folder(parent: &Path, prefix: &str) -> io::Result<Self> {
        loop {
            let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
            // Until this process holds the lock, another process that sweeps the parent takes this
            // folder for an abandoned one.
            match lock(folder.path()) {
                Ok(lock) => return Ok(Self { lock, folder }),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Path of the folder that is made or deleted here.
    fn whole(&self) -> PathBuf {
        self.folder.path().join(WHOLE)
    }

    /// Removes the folder and its contents.
    fn close(self) -> io::Result<()> {
        drop(self.lock);
        match self.folder.close() {
            // Another process has swept it since.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            closed => closed,
        }
    }
}

impl NewFolder {
    /// Makes an empty folder that will appear in the folder `parent`, which is made if absent.
    /// Removes what dead processes left there.
    ///
    /// # Errors
    ///
    /// When the disk reports an error.
    pub fn in_folder(parent: &Path) -> io::Result<Self> {
        fs::create_dir_all(parent).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => ErrorKind::NotADirectory.into(),
            _ => error,
        })?;
        sweep(parent);
        let workshop = Workshop::in_folder(parent, PARTIAL)?;
        let whole = workshop.whole();
        fs::create_dir(&whole)?;
        Ok(Self {
            parent: parent.to_owned(),
            whole,
            _workshop: workshop,
        })
    }

    /// Path of the folder in which the caller puts its files.
    pub fn path(&self) -> &Path {
        &self.whole
    }

    /// Gives the folder, which must not be empty, the name `name` in its parent. A rename can
    /// replace an empty folder but never a full one. Of several processes that take one name, only
    /// the first succeeds.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` when the name is taken, after which the caller may try another name; any
    /// other error of the disk.
    pub fn appear_as(&self, name: &Path) -> io::Result<()> {
        let target = self.parent.join(name);
        if target.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        File::open(&self.whole)?.sync_all()?;
        fs::rename(&self.whole, &target).map_err(|error| match error.kind() {
            ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory => {
                ErrorKind::AlreadyExists.into()
            }
            _ => error,
        })?;
        // A rename is durable once its directory is synced.
        File::open(&self.parent)?.sync_all()
    }
}

/// Splits the path of a new folder into parent and name; the parent of a plain name is `.`.
///
/// # Errors
///
/// When `path` does not end in a name, such as an empty path.
pub fn split(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let Some(name) = path.file_name() else {
        bail!("`{}` names no folder", path.display());
    };
    Ok((folder(path).to_owned(), name.into()))
}

/// Takes the lock of an unfinished folder. A process removes a folder only while it holds its lock,
/// so a folder that still exists is ours. On a file system without locks none is taken, and nothing
/// is swept.
fn lock(workshop: &Path) -> io::Result<File> {
    let file = lock_file(workshop)?;
    match file.try_lock() {
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
        taken => taken?,
    }
    workshop.join(LOCK).metadata()?;
    Ok(file)
}

fn lock_file(workshop: &Path) -> io::Result<File> {
    files::open_plain(
        &workshop.join(LOCK),
        OpenOptions::new().create(true).truncate(false).write(true),
    )
}

/// Removes unfinished and half-deleted files and folders that dead processes left in the folder
/// `parent`. What cannot be removed, such as another user's, stays.
pub fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !has_prefix(&name, [PARTIAL, DELETED]) {
            continue;
        }
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let lock = if is_folder {
            lock_file(&path)
        } else {
            files::open_plain(&path, OpenOptions::new().read(true).write(true))
        };
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            // Another process may be removing it at the same time.
            let _ = if is_folder {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
        }
    }
}

/// Deletes the folder at `path` and its contents. A rename comes first, so that `path` never names
/// a half-deleted folder.
///
/// # Errors
///
/// When the disk reports an error.
pub fn delete(path: &Path) -> Result<()> {
    bury(path).with_context(|| format!("cannot delete `{}`", path.display()))
}

fn bury(path: &Path) -> io::Result<()> {
    let grave = Workshop::in_folder(folder(path), DELETED)?;
    fs::rename(path, grave.whole())?;
    grave.close()
}

fn has_prefix(name: &OsStr, prefixes: [&str; 2]) -> bool {
    name.to_str()
        .is_some_and(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
}

/// Removes partial and half-deleted files and folders from the folder `dir`, in which no other
/// process may be at work.
///
/// # Errors
///
/// When the disk reports an error.
pub fn clean(dir: &Path) -> Result<()> {
    remove_unfinished(dir).with_context(|| format!("cannot clean up `{}`", dir.display()))
}

fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if !has_prefix(&entry.file_name(), [".partial-", DELETED]) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Bytes that are free on the disk of the folder `dir`, or of its nearest existing ancestor. `None`
/// where the system does not say.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let existing = dir
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(existing).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn filled(parent: &Path) -> NewFolder {
        let new = NewFolder::in_folder(parent).unwrap();
        fs::write(new.path().join("file"), "whole").unwrap();
        new
    }

    #[test]
    fn a_folder_appears_whole_and_leaves_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let new = filled(parent.path());
        assert_eq!(names(parent.path()).len(), 1);
        new.appear_as(Path::new("run")).unwrap();
        drop(new);
        assert_eq!(names(parent.path()), ["run"]);
        assert_eq!(names(&parent.path().join("run")), ["file"]);
        drop(filled(parent.path()));
        assert_eq!(names(parent.path()), ["run"]);
    }

    #[test]
    fn replaces_nothing_that_exists() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "").unwrap();
        fs::create_dir(parent.path().join("empty")).unwrap();
        std::os::unix::fs::symlink("nowhere", parent.path().join("link")).unwrap();
        filled(parent.path()).appear_as(Path::new("run")).unwrap();
        let new = filled(parent.path());
        for name in ["file", "empty", "link", "run"] {
            assert_eq!(
                new.appear_as(Path::new(name)).unwrap_err().kind(),
                ErrorKind::AlreadyExists,
                "{name}"
            );
        }
        new.appear_as(Path::new("other")).unwrap();
    }

    #[test]
    fn one_of_two_folders_gets_the_name() {
        for _ in 0..50 {
            let parent = tempfile::tempdir().unwrap();
            let appeared = std::thread::scope(|scope| {
                let one = || filled(parent.path()).appear_as(Path::new("run")).is_ok();
                let threads = [scope.spawn(one), scope.spawn(one)];
                threads.map(|thread| thread.join().unwrap())
            });
            assert_eq!(
                appeared.iter().filter(|appeared| **appeared).count(),
                1,
                "{appeared:?}"
            );
            assert_eq!(names(parent.path()), ["run"]);
        }
    }

    #[test]
    fn sweeps_folders_of_dead_processes_only() {
        let parent = tempfile::tempdir().unwrap();
        let living = filled(parent.path());
        // Each folder is of a process that was killed: before it had a lock, with a lock, or during
        // removal.
        for (number, files) in [&[][..], &["lock"], &["whole"]].into_iter().enumerate() {
            // By name: what an older host left is swept too.
            let dead = parent.path().join(format!(".partial-capo-{number}"));
            fs::create_dir(&dead).unwrap();
            files
                .iter()
                .for_each(|file| fs::write(dead.join(file), "").unwrap());
        }
        fs::create_dir(parent.path().join(".partial-of-another-program")).unwrap();
        fs::create_dir_all(parent.path().join(format!("{DELETED}x/whole/file"))).unwrap();
        let other = filled(parent.path());
        assert_eq!(names(parent.path()).len(), 3);
        other.appear_as(Path::new("b")).unwrap();
        living.appear_as(Path::new("a")).unwrap();
        drop((living, other));
        assert_eq!(
            names(parent.path()),
            [".partial-of-another-program", "a", "b"]
        );
    }

    #[test]
    fn sweeps_files_of_dead_processes_only() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let living = files::NewFile::create(&at("whole")).unwrap();
        fs::write(at(".partial-capo-dead"), "half").unwrap();
        // A link and a pipe are no such files, and are not opened.
        std::os::unix::fs::symlink("whole", at(".partial-capo-link")).unwrap();
        fs::create_dir(at(".partial-capo-pipe")).unwrap();
        let pipe = at(".partial-capo-pipe/lock");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        sweep(parent.path());
        assert_eq!(names(parent.path()).len(), 3, "{:?}", names(parent.path()));
        living.finish().unwrap();
        assert_eq!(
            names(parent.path()),
            [".partial-capo-link", ".partial-capo-pipe", "whole"]
        );
    }

    #[test]
    fn deletes_folders_and_cleans_up_half_deleted_ones() {
        let parent = tempfile::tempdir().unwrap();
        filled(parent.path()).appear_as(Path::new("run")).unwrap();
        delete(&parent.path().join("run")).unwrap();
        assert!(names(parent.path()).is_empty());
        assert!(delete(&parent.path().join("run")).is_err());
        assert!(names(parent.path()).is_empty());
        fs::create_dir_all(parent.path().join(format!("{DELETED}x/whole/file"))).unwrap();
        fs::write(parent.path().join(".partial-x"), "").unwrap();
        fs::write(parent.path().join("kept"), "").unwrap();
        clean(parent.path()).unwrap();
        assert_eq!(names(parent.path()), ["kept"]);
    }

    #[test]
    fn refuses_to_split_a_path_without_a_name() {
        assert_eq!(split(Path::new("run")).unwrap(), (".".into(), "run".into()));
        assert_eq!(
            split(Path::new("a/run/")).unwrap(),
            ("a".into(), "run".into())
        );
        assert_eq!(
            split(Path::new("")).unwrap_err().to_string(),
            "`` names no folder"
        );
        assert!(split(Path::new("a/..")).is_err());
    }

    #[test]
    fn free_bytes_of_an_absent_folder_are_those_of_its_ancestor() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(&folder.path().join("absent/run")).is_some());
    }
}
