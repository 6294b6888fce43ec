//! The lock of a run's directory: only one process at a time works in it.
//!
//! It is a kernel lock, taken through the standard library, so it ends with the process however that ends. The file's text only informs
//! a second process. The lock is on a file instead of the directory, because network file systems lock only files.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::terminal;

/// Name of the lock's file in the run's directory.
pub const FILE: &str = "lock";

/// Number of attempts to read the holder's text from the lock's file, and the pause between two attempts.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);
/// Number of attempts to take a lock that is held.
const LOOKS_BESIDE: u32 = 5;

/// Held while a process works in a run's directory.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held until it is dropped")] File);

impl Lock {
    /// Takes the lock of the current or future run in `dir`.
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let cannot = || format!("cannot lock the run directory `{}`", dir.display());
        let mut file = open().with_context(cannot)?;
        match try_lock(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = holder(&path);
                let holder = if holder.is_empty() { "another process" } else { holder.trim_end() };
                bail!("`{}` is in use by {holder} (wait until it has ended, or stop it)", dir.display());
            }
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                terminal::warn(&format!(
                    "the file system of `{}` has no locks: see to it that no other process works in it",
                    dir.display()
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
        }
        let mut sign = || {
            file.set_len(0)?;
            file.write_all(format!("process {} on {}\n", std::process::id(), machine()).as_bytes())
        };
        sign().with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Self(file))
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

/// True if a process works in the run's directory `dir`; false if this is unknown, for example without support for locks.
pub fn is_at_work(dir: &Path) -> bool {
    let look = || File::open(dir.join(FILE)).ok().map(|file| file.try_lock_shared());
    matches!(look(), Some(Err(TryLockError::WouldBlock)))
}

/// The text that the lock's holder wrote into its file at `path`; empty if none appears in time.
fn holder(path: &Path) -> String {
    for _ in 0..LOOKS {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if text.ends_with('\n') {
            return text;
        }
        std::thread::sleep(PAUSE);
    }
    String::new()
}

fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "this machine".to_owned() } else { name.trim().to_owned() }
}
