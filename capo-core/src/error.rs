//! The one error type of this crate: a message for the person who has to fix the cause, and a kind
//! for the code that reacts to it.

use std::fmt;

/// An input that the curvature model cannot work with, or a failure of what it works on.
///
/// The text is lowercase, without a full stop, and names what was given, what was expected and, in
/// parentheses, what to do about it. The kind is asked for with the methods `is_...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    sentence: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Input,
    State,
    Device,
    OutOfMemory,
    Ranks,
}

impl Error {
    /// The error of a connection between ranks, with a message in the form described above; for
    /// implementations of [`Ranks`](crate::Ranks).
    pub fn ranks(sentence: impl Into<String>) -> Self {
        Self::of(Kind::Ranks, sentence)
    }

    /// An error in what the caller passed.
    pub(crate) fn input(sentence: impl Into<String>) -> Self {
        Self::of(Kind::Input, sentence)
    }

    /// A state that was saved and cannot be used.
    pub(crate) fn state(sentence: impl Into<String>) -> Self {
        Self::of(Kind::State, sentence)
    }

    /// A CUDA device that is missing or failed.
    pub(crate) fn device(sentence: impl Into<String>) -> Self {
        Self::of(Kind::Device, sentence)
    }

    /// A CUDA device that has not enough memory.
    pub(crate) fn out_of_memory(sentence: impl Into<String>) -> Self {
        Self::of(Kind::OutOfMemory, sentence)
    }

    fn of(kind: Kind, sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        Self { sentence, kind }
    }

    /// True if a saved state is damaged or belongs to another model. The caller may go on without
    /// it.
    pub fn is_state(&self) -> bool {
        self.kind == Kind::State
    }

    /// True if a CUDA device is missing or failed, for lack of memory too. The caller may pass the
    /// batch in host memory.
    pub fn is_device(&self) -> bool {
        matches!(self.kind, Kind::Device | Kind::OutOfMemory)
    }

    /// True if a CUDA device has not enough memory. The caller may pass a smaller batch.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == Kind::OutOfMemory
    }

    /// True if the ranks could not take the step together: one of them failed, or the connection
    /// did. No rank's moments have changed.
    pub fn is_ranks(&self) -> bool {
        self.kind == Kind::Ranks
    }
}

/// An error in what the caller passed, with `sentence`, unless `holds`.
pub(crate) fn ensure<S: Into<String>>(
    holds: bool,
    sentence: impl FnOnce() -> S,
) -> Result<(), Error> {
    if holds {
        Ok(())
    } else {
        Err(Error::input(sentence()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}
