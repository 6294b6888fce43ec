//! The lock of a component or a registry. A wait that would never end is refused with a sentence.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::{process, ptr};

use pyo3::exceptions::PyValueError;
use pyo3::{PyResult, Python};

use crate::error::CapoError;

/// A value that one thread at a time works with, without Python's own lock.
pub(crate) struct Lock<T> {
    inner: Mutex<T>,
    /// Process id; 0 before the first use.
    process: AtomicU32,
    /// The thread that is inside, by its number; 0 for none.
    inside: AtomicUsize,
}

/// Marks this thread as the one inside until it is dropped.
struct Inside<'a>(&'a AtomicUsize);

impl<T: Send> Lock<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Self {
            inner: Mutex::new(inner),
            process: AtomicU32::new(0),
            inside: AtomicUsize::new(0),
        }
    }

    /// Result of `work`, after the calls of other threads; `what` names the value in errors.
    ///
    /// Fails where the running call can't end before this one does. It may be a call of this
    /// thread, whose callback, signal handler or `__del__` this is, or one of a thread that did not
    /// come along when the process was forked.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        what: &str,
        work: impl FnOnce(&mut T) -> R + Send,
    ) -> PyResult<R> {
        self.claim(what)?;
        Ok(py.detach(|| {
            let mut value = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            self.inside.store(this_thread(), Ordering::Relaxed);
            let _inside = Inside(&self.inside);
            work(&mut value)
        }))
    }

    /// Result of `work` with the values of several locks, each with its name in errors.
    ///
    /// Fails as [`Lock::with`] does, and where a lock is given twice.
    pub(crate) fn with_all<R: Send>(
        py: Python<'_>,
        locks: &[(&Self, String)],
        work: impl FnOnce(Vec<&mut T>) -> R + Send,
    ) -> PyResult<R> {
        for (lock, what) in locks {
            lock.claim(what)?;
        }
        // Threads that need some of the same locks take them in the same order.
        let mut order: Vec<usize> = (0..locks.len()).collect();
        order.sort_by_key(|&place| ptr::from_ref(locks[place].0));
        if let Some(pair) = order
            .windows(2)
            .find(|pair| ptr::eq(locks[pair[0]].0, locks[pair[1]].0))
        {
            let what = &locks[pair[0]].1;
            return Err(PyValueError::new_err(format!(
                "{what} is given twice (make one for each place)"
            )));
        }
        Ok(py.detach(|| {
            let mut values: Vec<_> = order
                .iter()
                .map(|&place| {
                    let lock = locks[place].0;
                    let value = lock.inner.lock().unwrap_or_else(PoisonError::into_inner);
                    lock.inside.store(this_thread(), Ordering::Relaxed);
                    (place, value, Inside(&lock.inside))
                })
                .collect();
            values.sort_by_key(|(place, ..)| *place);
            work(
                values
                    .iter_mut()
                    .map(|(_, value, _)| &mut **value)
                    .collect(),
            )
        }))
    }

    /// Python's own lock is held here, so threads come one at a time.
    fn claim(&self, what: &str) -> PyResult<()> {
        if self.inside.load(Ordering::Relaxed) == this_thread() {
            return Err(CapoError::new_err(format!(
                "{what} is inside a call of this very thread, which waits for what runs now (in a \
                 signal handler set a flag, and save the state after the step)"
            )));
        }
        let own = process::id();
        let before = self.process.load(Ordering::Relaxed);
        if before != own
            && before != 0
            && matches!(self.inner.try_lock(), Err(TryLockError::WouldBlock))
        {
            return Err(CapoError::new_err(format!(
                "{what} was in a call of another thread when this process was forked, which never \
                 ends here (make it in the new process, or start that with `spawn`)"
            )));
        }
        self.process.store(own, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// A number that no other living thread has; a forked process keeps it.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}
