//! The recovery point between the last two rollouts. If the run fails during the next rollout, it
//! can still save this point.
//!
//! The weights match the point until the optimizer's step. Components do not: each call may change
//! a component's state. Small states are therefore copied. Larger states keep the point valid only
//! until the first call of a component.

use super::Run;
use super::progress::{RecoveryPoint, States};

/// Largest total size of all components' states that is copied at every rollout, bytes.
const SMALL: usize = 1 << 20;

impl RecoveryPoint {
    /// The recovery point of the current state, without components' states.
    pub fn of(run: &Run) -> Self {
        Self {
            progress: run.progress.clone(),
            calls: run.resources.watchdog.calls(),
            states: None,
        }
    }

    /// True if states of `bytes` bytes are copied.
    pub fn is_small(bytes: usize) -> bool {
        bytes <= SMALL
    }
}

/// Records a recovery point now. The run's beginning and a saved state need none: a resume finds
/// them anyway.
pub fn remember(run: &mut Run) {
    run.recovery = None;
    if run.resources.watchdog.place().is_saved() {
        return;
    }
    // A failure to save is no error here, because the state may never be needed.
    let states = if run.remembers {
        States::save(&run.resources)
            .ok()
            .filter(|states| states.bytes() <= SMALL)
    } else {
        None
    };
    run.remembers = states.is_some();
    run.recovery = Some(RecoveryPoint {
        states,
        ..RecoveryPoint::of(run)
    });
}
