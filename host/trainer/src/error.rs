//! Errors to which a caller can react.

use std::fmt;

/// An error to which a caller can react. Functions of this crate return an [`anyhow::Error`] with a
/// sentence for people; [`Error::of`] finds this error in it. If a component failed, the cause is a
/// [`capo_plugin::PluginError`] instead.
///
/// ```
/// use capo_loader::registry::Registry;
/// use host_trainer::Error;
/// use host_trainer::config::{self, Draft};
/// use host_trainer::run::Run;
///
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("mine"), "")?;
/// let registry = Registry::open(&[])?;
/// let mut config = config::resolve(&registry, Draft::read(None, config::DEFAULT, &[])?)?.config;
/// config.train.output_dir = Some(folder.path().to_owned());
/// let error = Run::start(config, &registry).err().expect("the folder has other files");
/// assert!(Error::of(&error).is_some_and(Error::is_directory_taken));
/// # anyhow::Ok(())
/// ```
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Diverged,
    DirectoryTaken,
    Changed,
    UnusableCheckpoint,
}

impl Error {
    /// The error of this crate that caused `error`, if there is one.
    pub fn of(error: &anyhow::Error) -> Option<&Self> {
        error.downcast_ref()
    }

    /// True if a step made weights or moments of the optimizer infinite or NaN. A resume with a
    /// lower learning rate may succeed.
    pub fn is_diverged(&self) -> bool {
        self.kind == Kind::Diverged
    }

    /// True if the directory for a new run exists already.
    pub fn is_directory_taken(&self) -> bool {
        self.kind == Kind::DirectoryTaken
    }

    /// True if settings or data of a resumed run have changed. [`crate::run::Run::resume`] accepts
    /// them with `allow_changes`.
    pub fn is_changed(&self) -> bool {
        self.kind == Kind::Changed
    }

    /// True if a checkpoint cannot be used: it is damaged, or made with other components. Once it
    /// is deleted, a resume continues from the one before.
    pub fn is_unusable_checkpoint(&self) -> bool {
        self.kind == Kind::UnusableCheckpoint
    }

    pub(crate) fn diverged(message: impl Into<String>) -> Self {
        Self::new(Kind::Diverged, message)
    }

    pub(crate) fn directory_taken(message: impl Into<String>) -> Self {
        Self::new(Kind::DirectoryTaken, message)
    }

    pub(crate) fn changed(message: impl Into<String>) -> Self {
        Self::new(Kind::Changed, message)
    }

    pub(crate) fn unusable_checkpoint(message: impl Into<String>) -> Self {
        Self::new(Kind::UnusableCheckpoint, message)
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
