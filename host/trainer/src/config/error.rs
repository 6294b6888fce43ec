//! Errors about settings. An error names the settings that it is about, so that its reader does not
//! have to search the sentence for them.

use std::fmt;

/// Settings that cannot be used.
///
/// Functions of this crate return it inside of `anyhow::Error`; [`ConfigError::of`] finds it there.
#[derive(Debug)]
pub struct ConfigError {
    kind: Kind,
    settings: Vec<String>,
    sentence: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Missing,
    WrongType,
    Conflict,
}

impl ConfigError {
    /// The error about settings among the causes of `error`.
    pub fn of(error: &anyhow::Error) -> Option<&Self> {
        error.downcast_ref()
    }

    /// True for a key or a section that does not exist.
    pub fn is_unknown(&self) -> bool {
        self.kind == Kind::Unknown
    }

    /// True for a required setting that is not given.
    pub fn is_missing(&self) -> bool {
        self.kind == Kind::Missing
    }

    /// True for a value of another type than the setting's, or a name that is not among its values.
    pub fn is_wrong_type(&self) -> bool {
        self.kind == Kind::WrongType
    }

    /// True for values out of range, and for settings that contradict or disable each other.
    pub fn is_conflict(&self) -> bool {
        self.kind == Kind::Conflict
    }

    /// The settings that the error is about, as in `--set`: `train.max_steps`.
    pub fn settings(&self) -> &[String] {
        &self.settings
    }

    pub(crate) fn unknown(setting: impl Into<String>, sentence: String) -> Self {
        Self::about(Kind::Unknown, [setting], sentence)
    }

    pub(crate) fn missing(setting: impl Into<String>, sentence: String) -> Self {
        Self::about(Kind::Missing, [setting], sentence)
    }

    pub(crate) fn wrong_type(setting: impl Into<String>, sentence: String) -> Self {
        Self::about(Kind::WrongType, [setting], sentence)
    }

    /// Settings that are out of range or do not fit together.
    pub fn conflict<S: Into<String>>(
        settings: impl IntoIterator<Item = S>,
        sentence: impl Into<String>,
    ) -> Self {
        Self::about(Kind::Conflict, settings, sentence.into())
    }

    fn about<S: Into<String>>(
        kind: Kind,
        settings: impl IntoIterator<Item = S>,
        sentence: String,
    ) -> Self {
        Self {
            kind,
            settings: settings.into_iter().map(Into::into).collect(),
            sentence,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for ConfigError {}

/// Refuses the listed settings with a sentence, unless the condition holds.
#[macro_export]
macro_rules! require {
    ([$($setting:expr),* $(,)?], $holds:expr, $($sentence:tt)+) => {
        if !$holds {
            $crate::refuse!([$($setting),*], $($sentence)+);
        }
    };
}

/// Refuses the listed settings with a sentence.
#[macro_export]
macro_rules! refuse {
    ([$($setting:expr),* $(,)?], $($sentence:tt)+) => {
        return Err($crate::config::ConfigError::conflict(
            [$(String::from($setting)),*],
            format!($($sentence)+),
        )
        .into())
    };
}
