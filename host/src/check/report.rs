//! Results of the checks: lines for a person, JSON for a program.

use std::collections::BTreeSet;

use capo_plugin::testing::check::{Outcome, Status};
use serde::Serialize;
use serde_json::json;

use super::task::Component;
use crate::terminal::say;

/// One check and its outcome.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Name of the component's point; `None` for checks of the library.
    pub point: Option<String>,
    /// Id of the component; `None` for checks of the library.
    pub component: Option<String>,
    pub check: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Its duration in seconds; for a check that gave no answer, that of its process.
    pub seconds: f64,
}

/// All checks of all libraries.
pub struct Report {
    json: bool,
    libraries: Vec<(String, Vec<Row>)>,
}

/// Name of the host itself among the libraries.
pub const BUILT_IN: &str = "built in";

impl Report {
    /// An empty report. Unless `json`, every line is printed when it is added.
    pub fn new(json: bool) -> Self {
        Self {
            json,
            libraries: Vec::new(),
        }
    }

    /// Begins the checks of `library`.
    pub fn library(&mut self, library: &str) {
        let gap = if self.libraries.is_empty() { "" } else { "\n" };
        self.show(&format!("{gap}library {library}"));
        self.libraries.push((library.to_owned(), Vec::new()));
    }

    /// Begins the checks of `component`.
    pub fn component(&self, component: &Component) {
        self.show(&format!("\n{} {}", component.point, component.id));
    }

    /// Adds one check.
    pub fn add(
        &mut self,
        component: Option<&Component>,
        check: &str,
        outcome: Outcome,
        seconds: f64,
    ) {
        self.show(&format!(
            "  {check:<20}{:<9}{}",
            outcome.status.name(),
            outcome.sentence
        ));
        let point = component.map(|component| component.point.clone());
        let component = component.map(|component| component.id.clone());
        if let Some((_, rows)) = self.libraries.last_mut() {
            rows.push(Row {
                point,
                component,
                check: check.to_owned(),
                outcome,
                seconds,
            });
        }
    }

    /// Prints the summary, or the whole report as JSON. Returns true if no outcome is bad.
    pub fn close(&self) -> bool {
        let counts = Status::ALL.map(|status| (status.name(), self.count(status)));
        let any_bad = self
            .libraries
            .iter()
            .any(|(library, rows)| rows.iter().any(|row| is_bad(library, &row.outcome)));
        if self.json {
            let libraries = self
                .libraries
                .iter()
                .map(|(library, rows)| json!({ "library": library, "checks": rows }));
            let summary: serde_json::Map<_, _> = counts
                .iter()
                .map(|(name, n)| ((*name).to_owned(), json!(n)))
                .collect();
            say(
                &json!({ "libraries": libraries.collect::<Vec<_>>(), "summary": summary })
                    .to_string(),
            );
        } else {
            let words: Vec<String> = counts
                .iter()
                .map(|(name, n)| format!("{n} {name}"))
                .collect();
            self.say_unchecked();
            let only_unchecked =
                any_bad && self.count(Status::Failed) + self.count(Status::Crashed) == 0;
            let why = if only_unchecked {
                " (exit code 1: components are not checked)"
            } else {
                ""
            };
            say(&format!("\nchecks: {}{why}", words.join(", ")));
        }
        !any_bad
    }

    /// Number of checks with this status.
    fn count(&self, status: Status) -> usize {
        self.libraries
            .iter()
            .flat_map(|(_, rows)| rows)
            .filter(|row| row.outcome.status == status)
            .count()
    }

    /// Lists the components that no check could test.
    fn say_unchecked(&self) {
        let rows = self.libraries.iter().flat_map(|(_, rows)| rows);
        let ids: BTreeSet<&str> = rows
            .filter(|row| row.outcome.unchecked)
            .filter_map(|row| row.component.as_deref())
            .collect();
        if !ids.is_empty() {
            let ids: Vec<&str> = ids.into_iter().collect();
            say(&format!(
                "\nnot checked, for want of what the lines above ask for: {}",
                ids.join(", ")
            ));
        }
    }

    fn show(&self, line: &str) {
        if !self.json {
            say(line);
        }
    }
}

/// True if the outcome makes the whole report bad. The built-in reward model is unchecked until a
/// model is named for it, which is not a failure of any plugin.
fn is_bad(library: &str, outcome: &Outcome) -> bool {
    outcome.is_bad() && !(outcome.unchecked && library == BUILT_IN)
}
