//! Rules for settings that a run's file leaves out. TOML has no null, so a setting of `None` is always left out.

use std::cell::Cell;

thread_local! {
    /// True while settings are written in full.
    static IN_FULL: Cell<bool> = const { Cell::new(false) };
}

/// True if a setting is left out because it has its default. This holds for settings of later versions, so that older runs can be resumed.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    may_be_left_out(*value == T::default())
}

/// True if a setting may be left out: `is` says that it has its default, and settings are not written in full.
pub(super) fn may_be_left_out(is: bool) -> bool {
    is && !IN_FULL.get()
}

/// Calls `write` so that it also writes the settings that a file leaves out otherwise.
pub(super) fn in_full<R>(write: impl FnOnce() -> R) -> R {
    IN_FULL.set(true);
    let written = write();
    IN_FULL.set(false);
    written
}
