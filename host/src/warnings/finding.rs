//! The finding of a check.

use serde::Serialize;

/// The finding of a check after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// The component that the finding is about, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// The event, with its numbers.
    pub what: String,
    /// The setting to try.
    pub advice: String,
    /// The documentation page with details.
    pub page: &'static str,
}

impl Finding {
    /// Name of the finding in a run's metrics, in the line of the step after which it was reported.
    #[must_use]
    pub fn metric(&self) -> String {
        let component = self.component.iter().map(|component| format!("/{component}"));
        format!("warnings/{}", self.check) + &component.collect::<String>()
    }

    /// The whole finding in one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{} ({}; {})", self.what, self.advice, self.page)
    }
}
