//! The recovery point between the last two rollouts: a run that breaks in the next one can still save it.
//!
//! Until the optimizer's step the weights are those of the point. Components are not: each of their calls may have moved their state. So
//! their states are held while they are small, and else the point lasts until the first of these calls.

use super::Run;
use super::progress::{Progress, RecoveryPoint, States};

/// Largest states, of all components together, that are held at every rollout, bytes.
const SMALL: usize = 1 << 20;

impl RecoveryPoint {
    /// That of now, without states.
    pub fn of(run: &Run) -> Self {
        let progress = Progress { num_tokens: run.metrics.num_tokens(), ..run.progress.clone() };
        Self { progress, calls: run.watchdog.calls(), states: None }
    }

    /// True if states of so many bytes are held.
    pub fn is_small(bytes: usize) -> bool {
        bytes <= SMALL
    }
}

/// Makes now the recovery point, unless it is saved or the run's beginning: there a resume finds it anyway.
pub fn remember(run: &mut Run) {
    run.recovery = None;
    if run.watchdog.place().is_saved() {
        return;
    }
    // A component that cannot save its state now may never be asked for it.
    let states = if run.remembers { States::save(run).ok().filter(|states| states.bytes() <= SMALL) } else { None };
    run.remembers = states.is_some();
    run.recovery = Some(RecoveryPoint { states, ..RecoveryPoint::of(run) });
}
