//! The finding of a check.

use serde::Serialize;

/// The finding of a check after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    /// The component that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// The event, with its numbers.
    pub what: String,
    /// The setting to try.
    pub advice: String,
    /// The page that has more.
    pub page: &'static str,
}

impl Finding {
    /// Its name in a run's metrics, in the line of the step after which it was told.
    #[must_use]
    pub fn metric(&self) -> String {
        let component = self.component.iter().map(|component| format!("/{component}"));
        format!("warnings/{}", self.check) + &component.collect::<String>()
    }

    /// All of it in a line.
    #[must_use]
    pub fn line(&self) -> String {
        format!("{} ({}; {})", self.what, self.advice, self.page)
    }
}
