//! Outcomes of a check.

use serde::{Deserialize, Serialize};

use crate::PluginError;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Success,
    /// Not run; the sentence says why.
    Skipped,
    /// Allowed, and worth a look.
    Warning,
    /// A rule is broken.
    Failed,
    /// The process of the check did not live to answer.
    Crashed,
}

impl Status {
    /// All of them, best first.
    pub const ALL: [Self; 5] = [Self::Success, Self::Skipped, Self::Warning, Self::Failed, Self::Crashed];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Crashed => "crashed",
        }
    }
}

/// How a check ended, and a sentence about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How.
    pub status: Status,
    /// A sentence without a full stop.
    pub sentence: String,
    /// Skipped because the component lacks something that it needs: nothing is known about it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
}

impl Outcome {
    /// It ended like this.
    pub fn new(status: Status, sentence: impl Into<String>) -> Self {
        Self { status, sentence: sentence.into(), unchecked: false }
    }

    /// Not run, for want of something that the user can give.
    pub fn unchecked(sentence: impl Into<String>) -> Self {
        Self { unchecked: true, ..Self::new(Status::Skipped, sentence) }
    }

    /// True if a component with it is not as it should be, or nothing is known of it.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        self.unchecked || matches!(self.status, Status::Failed | Status::Crashed)
    }
}

/// Result of a check: an outcome, or the error of a call that should have succeeded. Such an error is a failure.
pub type Verdict = Result<Outcome, PluginError>;

/// As it should be.
pub fn success(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Success, sentence))
}

/// Not run.
pub fn skipped(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Skipped, sentence))
}

/// Allowed, and worth a look.
pub fn warning(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Warning, sentence))
}

/// A rule is broken.
pub fn failed(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Failed, sentence))
}
