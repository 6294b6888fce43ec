//! Which settings a run's file leaves out. TOML has no null, so what is none is left out in any case.

use std::cell::Cell;

thread_local! {
    /// True while settings are written in full.
    static IN_FULL: Cell<bool> = const { Cell::new(false) };
}

/// Settings that came later than others stand in a run's file only where they are used, so that older runs can go on.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    may_be_left_out(*value == T::default())
}

/// True where a setting may be left out, because it `is` as if it was not said.
pub(super) fn may_be_left_out(is: bool) -> bool {
    is && !IN_FULL.get()
}

/// Calls `write`, and has it write the settings too that a file leaves out otherwise.
pub(super) fn in_full<R>(write: impl FnOnce() -> R) -> R {
    IN_FULL.set(true);
    let written = write();
    IN_FULL.set(false);
    written
}
