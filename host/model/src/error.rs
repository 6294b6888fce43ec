//! Errors to which a caller can react.

use std::fmt;

/// An error to which a caller can react. Functions of this crate return an [`anyhow::Error`] with a
/// sentence for people; [`Error::of`] finds this error in it.
///
/// ```
/// use host_model::{Error, embedded};
///
/// let error = embedded::model_files("models/none").unwrap_err();
/// assert!(Error::of(&error).is_some_and(Error::is_missing_file));
/// ```
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    MissingFile,
    UnknownArchitecture,
    AbsentDevice,
}

impl Error {
    /// The error of this crate that caused `error`, if there is one.
    pub fn of(error: &anyhow::Error) -> Option<&Self> {
        error.downcast_ref()
    }

    /// True if there is no model of the given name, or if one of its files is missing.
    pub fn is_missing_file(&self) -> bool {
        self.kind == Kind::MissingFile
    }

    /// True if the files describe a model of an architecture that this crate does not compute.
    pub fn is_unknown_architecture(&self) -> bool {
        self.kind == Kind::UnknownArchitecture
    }

    /// True if the machine, or this build, has no such device.
    pub fn is_absent_device(&self) -> bool {
        self.kind == Kind::AbsentDevice
    }

    pub(crate) fn missing_file(message: impl Into<String>) -> Self {
        Self::new(Kind::MissingFile, message)
    }

    pub(crate) fn unknown_architecture(message: impl Into<String>) -> Self {
        Self::new(Kind::UnknownArchitecture, message)
    }

    pub(crate) fn absent_device(message: impl Into<String>) -> Self {
        Self::new(Kind::AbsentDevice, message)
    }

    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
