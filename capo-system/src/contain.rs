//! Turns panics of third-party code over a file's contents into errors.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use anyhow::{Error, Result, anyhow};

thread_local! {
    /// True while this thread is in such a call, so that its panics are not printed.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Calls code that may panic over its input. After a panic, the data that the call worked on must
/// be dropped or remain valid.
pub fn contain<T>(call: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                before(info);
            }
        }));
    });
    let before = CONTAINED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    CONTAINED.set(before);
    outcome.map_err(|panic| damaged(message(&*panic)))
}

/// The error about a file's contents that a reader refuses with `reason`.
pub fn damaged(reason: impl Display) -> Error {
    anyhow!("it is damaged, or of a kind that is not supported ({reason})")
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    let formatted = panic.downcast_ref::<String>().map(String::as_str);
    literal.or(formatted).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        assert_eq!(contain(|| 7).unwrap(), 7);
        let error = |call: fn()| contain(call).unwrap_err().to_string();
        let text = |message: &str| {
            format!("it is damaged, or of a kind that is not supported ({message})")
        };
        assert_eq!(error(|| panic!("so {}", "what")), text("so what"));
        assert_eq!(error(|| panic!("plain")), text("plain"));
        assert_eq!(error(|| std::panic::panic_any(7)), text("no message"));
        assert!(!CONTAINED.get());
    }
}
