//! The one error type of this crate: a message for the person who has to fix the cause.

use std::fmt;

/// An input that the curvature model cannot work with.
///
/// The text is lowercase, without a full stop, and names what was given, what was expected and, in
/// parentheses, what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    /// An error with this message, in the form described above; for implementations of
    /// [`Ranks`](crate::Ranks).
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// An error with `sentence` unless `holds`.
pub(crate) fn ensure<S: Into<String>>(
    holds: bool,
    sentence: impl FnOnce() -> S,
) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(Error::new(sentence()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
