//! Errors of components.

use std::borrow::Cow;
use std::fmt;

use abi_stable::StableAbi;

/// Kind of a failure. The set of values may grow, so this is an integer.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorKind(pub u32);

impl ErrorKind {
    /// The component could not do its work.
    pub const FAILED: Self = Self(0);
    /// The component's table is wrong.
    pub const CONFIG: Self = Self(1);
    /// The host did not provide what the component needs.
    pub const MISSING_INPUT: Self = Self(2);
    /// The component does not know how to handle this (a device, a dtype).
    pub const UNSUPPORTED: Self = Self(3);
    /// A saved state does not fit the component.
    pub const STATE: Self = Self(4);
    /// The component panicked; its instance is retired.
    pub const PANIC: Self = Self(5);
    /// The component broke a rule of its point.
    pub const CONTRACT: Self = Self(6);
}

/// An error message with its kind.
///
/// Write the message lowercase and without a full stop. State the value *and* the limit, and put
/// the next action in parentheses. The host adds the component's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginError {
    kind: ErrorKind,
    message: String,
}

impl PluginError {
    /// An error of any kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The component could not do its work.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::FAILED, message)
    }

    /// The component's table is wrong.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::CONFIG, message)
    }

    /// The component does not know how to handle this.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::UNSUPPORTED, message)
    }

    /// A saved state does not fit the component.
    pub fn state(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::STATE, message)
    }

    /// Answer of a component without state to the saved `state`, which must be empty.
    pub(crate) fn of_stateless(state: &[u8]) -> Result<(), Self> {
        if state.is_empty() {
            return Ok(());
        }
        let len = state.len();
        Err(Self::state(format!(
            "{len} bytes of saved state, but this component keeps none (it was saved by another \
             one)"
        )))
    }

    /// Kind of this failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Text of the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prefixes the message with `context`: `context: message`.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self {
            kind: self.kind,
            message: format!("{context}: {}", self.message),
        }
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PluginError {}

impl From<String> for PluginError {
    fn from(message: String) -> Self {
        Self::failed(message)
    }
}

impl From<&str> for PluginError {
    fn from(message: &str) -> Self {
        Self::failed(message)
    }
}

/// Longest text that a host accepts from a component, bytes.
const LONGEST: usize = 4000;

/// `text`, cut to the longest accepted length.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= LONGEST {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!(
        "{}… (cut: {} bytes in all)",
        &text[..text.floor_char_boundary(LONGEST)],
        text.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;

    #[test]
    fn cuts_long_messages() {
        let said = |message: &str| {
            PluginError::from(WireError::from(PluginError::failed(message)))
                .message()
                .to_owned()
        };
        assert_eq!(said(&"e".repeat(LONGEST)), "e".repeat(LONGEST));
        let long = said(&"é".repeat(1_000_000));
        assert!(
            long.len() < LONGEST + 50 && long.ends_with("é… (cut: 2000000 bytes in all)"),
            "{}",
            long.len()
        );
    }
}
