//! Watches over the calls of components. A call that does not return ends the process with a
//! message. If a call ends the process, a message names it.
//!
//! The thread that trains makes the calls, so a call that hangs can only be ended with the process.
//! Entering and leaving a call are atomic stores, which another thread checks from time to time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use capo_plugin::keeping_arithmetic;

use crate::last_words::{self, Name};
use crate::place::Place;

pub use crate::last_words::{End, exit, no_memory};

/// The newest watchdog of this process. The drop of a component does not say which watchdog it
/// belongs to.
static NEWEST: Mutex<Option<Watchdog>> = Mutex::new(None);

/// Measures the seconds of the current call. Its thread ends when this is dropped.
#[derive(Debug, Clone, Default)]
pub struct Watchdog(Arc<Watched>);

#[derive(Debug, Default)]
struct Watched {
    /// What is watched: `component` or `plugin`.
    kind: &'static str,
    /// Ids of the watched components, or paths of the watched plugins.
    ids: Vec<String>,
    /// Names of the calls so far, by index in `ids` and method.
    names: Mutex<BTreeMap<(usize, &'static str), Name>>,
    calls: AtomicU64,
    /// The number of the current call, from 1; 0 between calls.
    current: AtomicU64,
    place: Arc<Place>,
}

impl Watchdog {
    /// Starts a watchdog that ends the process if a call of one of the components `ids` takes
    /// longer than `seconds`; 0 is no limit. The newest watchdog also watches drops, even after it
    /// is dropped itself.
    pub fn start(seconds: u64, ids: Vec<String>) -> Self {
        let watches = !ids.is_empty();
        let watchdog = Self::over(seconds, "component", ids);
        if watches {
            *NEWEST.lock().unwrap_or_else(PoisonError::into_inner) = Some(watchdog.clone());
            capo_plugin::watch_drops(|id, drop| {
                let newest = NEWEST
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                newest.unwrap_or_default().watch(id, "drop", drop);
            });
        }
        watchdog
    }

    /// Starts like `start`, for whole libraries, by their paths.
    pub(crate) fn over_plugins(seconds: u64, paths: Vec<String>) -> Self {
        Self::over(seconds, "plugin", paths)
    }

    fn over(seconds: u64, kind: &'static str, ids: Vec<String>) -> Self {
        let place = Arc::default();
        if !ids.is_empty() {
            last_words::listen(&place);
        }
        let looks = seconds > 0 && !ids.is_empty();
        let watched = Arc::new(Watched {
            kind,
            ids,
            place,
            ..Watched::default()
        });
        if looks {
            let weak = Arc::downgrade(&watched);
            let (ready, started) = mpsc::channel();
            std::thread::spawn(move || watch(&weak, seconds, &ready));
            // A new thread takes the lock of the system's loader, which a library may hold for ever
            // while it is opened.
            let _ = started.recv();
        }
        Self(watched)
    }

    /// A watchdog that watches nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Progress of the run, for the message. The training code must update it.
    pub fn place(&self) -> &Arc<Place> {
        &self.0.place
    }

    /// Number of calls that have begun.
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Notes that a call of `method` of component `id` begins.
    pub fn enter(&self, id: &str, method: &'static str) {
        let Some(place) = self.0.ids.iter().position(|known| known == id) else {
            return;
        };
        let mut names = self.0.names.lock().unwrap_or_else(PoisonError::into_inner);
        last_words::enter(
            names
                .entry((place, method))
                .or_insert_with(|| last_words::name(self.0.kind, id, method)),
        );
        let call = 1 + self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.0.current.store(call, Ordering::Relaxed);
    }

    /// Notes that the call has returned.
    pub fn leave(&self) {
        self.0.current.store(0, Ordering::Relaxed);
        last_words::leave();
    }

    /// Runs one call under watch, with floating-point settings of its own.
    pub fn watch<R>(&self, id: &str, method: &'static str, call: impl FnOnce() -> R) -> R {
        self.enter(id, method);
        let result = keeping_arithmetic(call);
        self.leave();
        result
    }
}

/// Interval between checks of a call, and the number of checks in a row that one call may last.
///
/// Checks are counted instead of time, so that a pause of the whole process does not count as a
/// long call.
fn looks_within(seconds: u64) -> (Duration, u64) {
    let interval = (Duration::from_secs(seconds) / 10).min(Duration::from_secs(1));
    (interval, seconds.max(10))
}

/// The last call that was checked, and the number of checks in a row that saw it.
#[derive(Default)]
struct Seen {
    call: u64,
    looks: u64,
}

impl Seen {
    /// True if more than `most` checks in a row have seen the call `current`.
    fn too_long(&mut self, current: u64, most: u64) -> bool {
        let same = current != 0 && current == self.call;
        *self = Self {
            call: current,
            looks: if same { self.looks + 1 } else { 0 },
        };
        self.looks >= most
    }
}

/// Checks the current call until the watchdog is gone. Ends the process if one call lasts too long.
fn watch(watched: &Weak<Watched>, seconds: u64, ready: &Sender<()>) {
    let (interval, most) = looks_within(seconds);
    let mut seen = Seen::default();
    let limit = seconds.to_string();
    // The receiver may be gone if the process is ending.
    let _ = ready.send(());
    loop {
        std::thread::sleep(interval);
        let Some(watched) = watched.upgrade() else {
            return;
        };
        if seen.too_long(watched.current.load(Ordering::Relaxed), most) {
            let way_out = " s (the limit is `train.component_timeout`; 0 waits without one)";
            last_words::tell(&["did not come back within ", &limit, way_out], &[]);
            // Not `exit`: the system's loader holds a lock while it opens a library, and `exit`
            // would wait for it.
            last_words::end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_number() {
        let dog = Watchdog::start(0, vec!["a.b".into(), "c.d".into()]);
        let current = || dog.0.current.load(Ordering::Relaxed);
        dog.watch("a.b", "estimate", || assert_eq!(current(), 1));
        assert_eq!(current(), 0);
        dog.watch("c.d", "step_end", || assert_eq!(current(), 2));
        dog.watch("c.d", "step_end", || {
            assert_eq!(
                current(),
                3,
                "another call of the same method is another call"
            )
        });
        dog.watch("e.f", "mask", || {
            assert_eq!(current(), 0, "nobody knows it")
        });
        assert_eq!(
            *dog.0.names.lock().unwrap()[&(1, "step_end")],
            "component `c.d`: `step_end`"
        );
    }

    #[test]
    fn a_call_is_too_long_when_it_was_seen_often_in_a_row() {
        let mut seen = Seen::default();
        let mut looks = |calls: &[u64]| {
            calls
                .iter()
                .map(|&call| seen.too_long(call, 3))
                .collect::<Vec<_>>()
        };
        assert_eq!(looks(&[0, 0, 0, 0, 0]), [false; 5]);
        assert_eq!(looks(&[7, 7, 7, 8, 8, 8, 0, 8]), [false; 8]);
        assert_eq!(looks(&[9, 9, 9, 9]), [false, false, false, true]);
    }

    #[test]
    fn the_looks_take_as_long_as_the_limit() {
        for seconds in [1, 3, 10, 11, 600] {
            let (interval, most) = looks_within(seconds);
            assert_eq!(
                interval * u32::try_from(most).unwrap(),
                Duration::from_secs(seconds)
            );
        }
    }
}
