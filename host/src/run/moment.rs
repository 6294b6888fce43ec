//! The last moment between two rollouts: what a run that breaks in the next one can still save.
//!
//! Until the optimizer's step the weights are those of that moment. Components are not: each of their calls may have moved their state. So
//! their states are kept while they are small, and else such a moment lasts until the first of these calls.

use super::Run;
use super::progress::{Moment, Progress, States};

/// Largest states, of all components together, that are kept at every rollout, bytes.
const SMALL: usize = 1 << 20;

impl Moment {
    /// The present one, without states.
    pub fn of(run: &Run) -> Self {
        let progress = Progress { num_tokens: run.metrics.num_tokens(), ..run.progress.clone() };
        Self { progress, calls: run.watchdog.calls(), states: None }
    }

    /// True if states of so many bytes are kept.
    pub fn is_small(bytes: usize) -> bool {
        bytes <= SMALL
    }
}

/// Remembers the present moment, unless it is saved or the run's beginning: there a resume finds it anyway.
pub fn remember(run: &mut Run) {
    run.moment = None;
    if run.watchdog.place().is_saved() {
        return;
    }
    // A component that cannot save its state now may never be asked for it.
    let states =
        if run.remembers { States::save(run).ok().filter(|states| Moment::is_small(states.bytes())) } else { None };
    run.remembers = states.is_some();
    run.moment = Some(Moment { states, ..Moment::of(run) });
}
