//! Outcomes of a check.

use serde::{Deserialize, Serialize};

use crate::PluginError;

/// Kind of a check's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The demand is met.
    Success,
    /// The check did not run; the message says why.
    Skipped,
    /// The behaviour is allowed but deserves a look.
    Warning,
    /// The component broke a rule.
    Failed,
    /// The check's process ended without an answer.
    Crashed,
}

impl Status {
    /// All kinds, best first.
    pub const ALL: [Self; 5] = [
        Self::Success,
        Self::Skipped,
        Self::Warning,
        Self::Failed,
        Self::Crashed,
    ];

    /// Name of the kind in reports.
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

/// Outcome of a check: its kind and a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Kind of the outcome.
    pub status: Status,
    /// Message without a full stop.
    pub sentence: String,
    /// True if the check was skipped because the component lacks something that it needs, so
    /// nothing is known about it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
}

impl Outcome {
    /// An outcome of kind `status`.
    pub fn new(status: Status, sentence: impl Into<String>) -> Self {
        Self {
            status,
            sentence: sentence.into(),
            unchecked: false,
        }
    }

    /// A skipped check that lacks something which the user can provide.
    pub fn unchecked(sentence: impl Into<String>) -> Self {
        Self {
            unchecked: true,
            ..Self::new(Status::Skipped, sentence)
        }
    }

    /// True if the outcome is a fault of the component, or leaves it unchecked.
    pub fn is_bad(&self) -> bool {
        self.unchecked || matches!(self.status, Status::Failed | Status::Crashed)
    }
}

/// Result of a check: an outcome, or the error of a call that should have succeeded. Such an error
/// is a failure.
pub type Verdict = Result<Outcome, PluginError>;

/// The demand is met.
pub fn success(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Success, sentence))
}

/// The check did not run.
pub fn skipped(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Skipped, sentence))
}

/// The behaviour is allowed but deserves a look.
pub fn warning(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Warning, sentence))
}

/// The component broke a rule.
pub fn failed(sentence: impl Into<String>) -> Verdict {
    Ok(Outcome::new(Status::Failed, sentence))
}
