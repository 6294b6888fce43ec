//! The recovery point between the last two rollouts. If the run fails during a rollout, the state
//! before that rollout can still be saved.
//!
//! The weights stay as they are until the optimizer's step. The states of components may change
//! with each call, so small ones are copied. If they are larger, the point is valid only until the
//! first call of a component.

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

/// Records a recovery point now. A state that is already saved, or is the beginning of the run,
/// needs none.
pub fn remember(run: &mut Run) {
    run.recovery = None;
    if run.resources.watchdog.place().is_saved() {
        return;
    }
    // A failure to save is not an error here, because the state may never be needed.
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
