//! Watches over the calls of components: one that does not come back ends the process with a sentence.
//!
//! The calls are made by the thread that trains, so nothing can be done about such a call but to end the process. Entering
//! and leaving a call are atomic stores; a thread looks at them from time to time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::place::Place;
use crate::terminal;

/// The methods that are watched, by number.
const METHODS: [&str; 8] = ["create", "score", "estimate", "evaluate", "mask", "step_end", "save", "load"];

/// Counts the seconds of the current call. The thread behind it ends when this is dropped.
#[derive(Debug)]
pub struct Watchdog(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    limit: Duration,
    ids: Vec<String>,
    /// Calls so far.
    calls: AtomicU64,
    /// 0 between calls; else number of the call, of its component and of its method (from 1), in 40, 16 and 8 bits.
    current: AtomicU64,
    /// Where the run stands.
    place: Arc<Place>,
}

impl Watchdog {
    /// Ends the process when a call of one of the components `ids` takes longer than `seconds`; 0 waits without a limit.
    #[must_use]
    pub fn start(seconds: u64, ids: Vec<String>) -> Self {
        let limit = Duration::from_secs(seconds);
        let (calls, current) = (AtomicU64::new(0), AtomicU64::new(0));
        let watched = Arc::new(Watched { limit, ids, calls, current, place: Arc::default() });
        if seconds > 0 {
            let weak = Arc::downgrade(&watched);
            std::thread::spawn(move || watch(&weak, limit));
        }
        Self(watched)
    }

    /// One that watches nothing.
    #[must_use]
    pub fn off() -> Self {
        Self::start(0, Vec::new())
    }

    /// Where the run stands, which the sentence tells: whoever moves the run on says so here.
    #[must_use]
    pub fn place(&self) -> &Arc<Place> {
        &self.0.place
    }

    /// How many calls have begun.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// A call of `method` of component `id` begins.
    pub fn enter(&self, id: &str, method: &'static str) {
        let component = self.0.ids.iter().position(|known| known == id);
        let method = METHODS.iter().position(|known| *known == method);
        if let (Some(component), Some(method)) = (component, method) {
            let call = self.0.calls.fetch_add(1, Ordering::Relaxed);
            let current = call << 24 | (component as u64 & 0xffff) << 8 | (method as u64 + 1);
            self.0.current.store(current, Ordering::Relaxed);
        }
    }

    /// The call has come back.
    pub fn leave(&self) {
        self.0.current.store(0, Ordering::Relaxed);
    }

    /// Runs one call.
    pub fn watch<R>(&self, id: &str, method: &'static str, call: impl FnOnce() -> R) -> R {
        self.enter(id, method);
        let result = call();
        self.leave();
        result
    }
}

/// Looks at the current call until the watchdog is gone, and ends the process when it is the same one for too long.
fn watch(watched: &Weak<Watched>, limit: Duration) {
    let interval = (limit / 10).min(Duration::from_secs(1));
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        std::thread::sleep(interval);
        let Some(watched) = watched.upgrade() else { return };
        let current = watched.current.load(Ordering::Relaxed);
        if current == 0 || current != seen {
            (seen, since) = (current, Instant::now());
        } else if since.elapsed() >= limit {
            terminal::error(&watched.sentence(current));
            std::process::exit(1);
        }
    }
}

impl Watched {
    fn sentence(&self, current: u64) -> String {
        let id = &self.ids[(current >> 8 & 0xffff) as usize];
        let method = METHODS[(current & 0xff) as usize - 1];
        let call = format!(
            "component `{id}`: `{method}` did not come back within {} s (the limit is `train.component_timeout`; 0 waits without one)",
            self.limit.as_secs()
        );
        match self.place.stopped() {
            Some(stopped) => format!("{stopped}: {call}"),
            None => call,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_current_call() {
        let dog = Watchdog::start(0, vec!["a.b".into(), "c.d".into()]);
        let current = || dog.0.current.load(Ordering::Relaxed);
        dog.watch("a.b", "estimate", || assert_ne!(current(), 0));
        assert_eq!(current(), 0);
        dog.enter("c.d", "step_end");
        let first = current();
        assert!(dog.0.sentence(first).starts_with("component `c.d`: `step_end` did not come back within 0 s"));
        dog.leave();
        dog.enter("c.d", "step_end");
        assert_ne!(current(), first, "another call of the same method is another call");
        dog.place().started(std::path::Path::new("runs/x"));
        dog.place().at(7);
        dog.place().saved(7);
        let sentence = dog.0.sentence(current());
        assert!(
            sentence.starts_with("the run stopped after step 7 (go on with `host train --resume runs/x`): component")
        );
    }
}
