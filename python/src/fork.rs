//! Forked processes. If another thread was inside a call at the fork, that call never ends in the child.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, TryLockError};

use pyo3::{PyResult, Python};

use crate::error::CapoError;

/// A lock that is held while a plugin works, and the process that can release it.
pub(crate) struct Forked<T> {
    pub(crate) inner: Mutex<T>,
    /// Process id; 0 before the first claim.
    process: AtomicU32,
}

impl<T> Forked<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Self { inner: Mutex::new(inner), process: AtomicU32::new(0) }
    }

    /// Call this before each lock, with Python's own lock held, so that threads call it one at a time.
    pub(crate) fn claim(&self, _: Python<'_>, what: &str) -> PyResult<()> {
        let own = process::id();
        let before = self.process.load(Ordering::Relaxed);
        if before != own && before != 0 && matches!(self.inner.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(CapoError::new_err(format!(
                "{what} was in a call of another thread when this process was forked, which never ends here (make it in the new process, or start that with `spawn`)"
            )));
        }
        self.process.store(own, Ordering::Relaxed);
        Ok(())
    }
}
