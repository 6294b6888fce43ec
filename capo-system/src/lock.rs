//! The lock of a run's directory: only one process at a time works in it.
//!
//! It is a kernel lock, taken through the standard library, so it ends with the process however
//! that ends. It is taken on the directory itself, which stays the same when somebody deletes or
//! replaces a file in it, and on a file in it, because network file systems lock only files. The
//! file's text only informs a second process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::{files, terminal};

/// Name of the lock's file in the run's directory.
pub const FILE: &str = "lock";

/// Number of attempts to read the holder's text from the lock's file, and the pause between two
/// attempts.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);
/// Number of attempts to take a lock that is held.
const LOOKS_BESIDE: u32 = 5;
/// Most bytes of the holder's text that are read.
const LONGEST: u64 = 1 << 10;

/// Held while a process works in a run's directory.
#[derive(Debug)]
pub struct Lock {
    #[expect(dead_code, reason = "it is held until the lock is dropped")]
    dir: File,
    file: File,
}

impl Lock {
    /// Takes the lock of the current or future run in `dir`.
    ///
    /// # Errors
    ///
    /// When another process holds it, or the lock's file is a link or no regular file.
    pub fn take(dir: &Path) -> Result<Self> {
        let lock = Self::taken(dir)
            .with_context(|| format!("cannot lock the run directory `{}`", dir.display()))?;
        let Some(mut lock) = lock else {
            return Err(in_use(dir));
        };
        lock.sign()
            .with_context(|| format!("cannot write `{}`", dir.join(FILE).display()))?;
        Ok(lock)
    }

    /// The lock, not yet signed; `None` if another process holds it.
    fn taken(dir: &Path) -> Result<Option<Self>> {
        let folder = File::open(dir)?;
        // A file system that cannot lock a directory may lock a file.
        if let Err(TryLockError::WouldBlock) = try_lock(&folder) {
            return Ok(None);
        }
        let path = dir.join(FILE);
        let file = files::open_plain(
            &path,
            OpenOptions::new().create(true).truncate(false).write(true),
        )
        .with_context(|| format!("cannot open `{}`", path.display()))?;
        match try_lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                terminal::warn(&format!(
                    "the file system of `{}` has no locks: see to it that no other process works \
                     in it",
                    dir.display()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        Ok(Some(Self { dir: folder, file }))
    }

    /// Writes the holder's name into the lock's file.
    fn sign(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        let signature = format!("process {} on {}\n", std::process::id(), machine());
        self.file.write_all(signature.as_bytes())
    }
}

/// Takes the lock in a few attempts, because a mere check ([`is_at_work`]) holds it for a moment.
fn try_lock(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 1..LOOKS_BESIDE {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
    file.try_lock()
}

/// True if a process works in the run's directory `dir`; false if this is unknown, for example
/// without support for locks.
///
/// # Errors
///
/// When the lock's file is a link or no regular file.
pub fn is_at_work(dir: &Path) -> io::Result<bool> {
    if File::open(dir).is_ok_and(|folder| is_locked(&folder)) {
        return Ok(true);
    }
    match open_file(dir) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Err(error),
        opened => Ok(opened.is_ok_and(|file| is_locked(&file))),
    }
}

fn open_file(dir: &Path) -> io::Result<File> {
    files::open_plain(&dir.join(FILE), OpenOptions::new().read(true))
}

fn is_locked(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The error for a second process in `dir`.
fn in_use(dir: &Path) -> anyhow::Error {
    let shown = dir.display();
    let holder = holder(dir);
    match holder.trim_end() {
        "" => anyhow!(
            "`{shown}` is in use by another process, which its file `{FILE}` does not name (wait \
             until it has ended, or stop it)"
        ),
        holder => anyhow!("`{shown}` is in use by {holder} (wait until it has ended, or stop it)"),
    }
}

/// The text that the lock's holder wrote into its file in `dir`; empty if none appears in time.
fn holder(dir: &Path) -> String {
    for _ in 0..LOOKS {
        let mut text = String::new();
        let read = open_file(dir).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        if read.is_ok() && text.ends_with('\n') {
            return text;
        }
        std::thread::sleep(PAUSE);
    }
    String::new()
}

fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() {
        "this machine".to_owned()
    } else {
        name.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleting_or_replacing_the_file_does_not_free_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let lock = Lock::take(dir.path()).unwrap();
        let refused = || Lock::take(dir.path()).unwrap_err().to_string();
        assert!(
            refused().contains(&format!("is in use by process {} on ", std::process::id())),
            "{}",
            refused()
        );
        std::fs::remove_file(&file).unwrap();
        assert!(
            refused().contains("is in use by another process, which its file `lock` does not name"),
            "{}",
            refused()
        );
        assert!(!file.exists(), "a refusal makes no file");
        std::fs::write(&file, "").unwrap();
        assert!(
            refused().contains("is in use by another process"),
            "{}",
            refused()
        );
        assert!(is_at_work(dir.path()).unwrap());
        drop(lock);
        assert!(!is_at_work(dir.path()).unwrap());
        Lock::take(dir.path()).unwrap();
    }

    /// A network file system locks only files, and an older host locks only the file.
    #[test]
    fn a_lock_on_the_file_alone_counts() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join(FILE)).unwrap();
        file.lock().unwrap();
        assert!(is_at_work(dir.path()).unwrap());
        assert!(Lock::take(dir.path()).is_err());
    }

    #[test]
    fn refuses_a_lock_file_that_is_a_link_or_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let thesis = dir.path().join("thesis");
        std::fs::write(&thesis, "twenty pages").unwrap();
        std::os::unix::fs::symlink(&thesis, &file).unwrap();
        assert!(
            is_at_work(dir.path())
                .unwrap_err()
                .to_string()
                .starts_with("it is a symbolic link, ")
        );
        assert!(Lock::take(dir.path()).is_err());
        assert_eq!(std::fs::read(&thesis).unwrap(), b"twenty pages");
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &file,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        assert!(is_at_work(dir.path()).is_err());
        let sentence = format!("{:#}", Lock::take(dir.path()).unwrap_err());
        assert!(
            sentence.contains("/lock`: it is a named pipe, not a regular file"),
            "{sentence}"
        );
    }
}
