//! The lock of a run's directory: one process at a time works in it.
//!
//! It is the kernel's, through the standard library, so that it ends with the process however that ends; the file's text is only for
//! whoever comes second. A file and not the directory is locked, because network file systems lock nothing else.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capo_loader::terminal;

/// The lock's file, in the directory.
pub const FILE: &str = "lock";

/// How often the lock's file is looked at before its holder has written who it is, and the pause between two looks.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);
/// How often a lock that is held is tried.
const LOOKS_BESIDE: u32 = 5;

/// Held while a process works in a run's directory.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held until it is dropped")] File);

impl Lock {
    /// Takes the lock of the run that will be or is in `dir`.
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let open = || OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let mut file = open().with_context(|| format!("cannot lock the run directory `{}`", dir.display()))?;
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
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock the run directory `{}`", dir.display()));
            }
        }
        let mut sign = || {
            file.set_len(0)?;
            file.write_all(format!("process {} on {}\n", std::process::id(), machine()).as_bytes())
        };
        sign().with_context(|| format!("cannot write `{}`", path.display()))?;
        Ok(Self(file))
    }
}

/// Takes the lock. Who only looks ([`is_at_work`]) has it for no longer than a moment, so it is tried a few times.
fn try_lock(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 1..LOOKS_BESIDE {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
    file.try_lock()
}

/// True if a process works in the run's directory `dir`. Where that cannot be known, as without locks, it counts as no.
pub fn is_at_work(dir: &Path) -> bool {
    let look = || File::open(dir.join(FILE)).ok().map(|file| file.try_lock_shared());
    matches!(look(), Some(Err(TryLockError::WouldBlock)))
}

/// The text that the holder of the lock wrote into its file at `path`. Empty where none appears within a moment.
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

/// This machine's name.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "this machine".to_owned() } else { name.trim().to_owned() }
}
