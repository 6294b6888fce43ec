//! What a test forces upon the operations of its thread.

use std::cell::Cell;

thread_local! {
    /// True while this thread's operations use `generic` even where a fused kernel supports them.
    pub static GENERIC: Cell<bool> = const { Cell::new(false) };
}
