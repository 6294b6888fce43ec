//! One check in its own process: the parent's task and the child's answer.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use capo_plugin::testing::check::{Outcome, Row, Status, Subject};
use capo_plugin::{Image, Point};
use serde::{Deserialize, Serialize};

use super::catalog::{ENTRY_POINT, FUZZ, LIBRARY, of_components};
use super::conduct::remember_threads;
use super::fuzz::{self, Cases};
use super::library::Loaded;
use crate::data::{self, Example};

/// The task of a child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Path of the library; `None` for the built-in components.
    pub library: Option<PathBuf>,
    /// Name of the check.
    pub check: String,
    /// The component, for checks of a component.
    pub component: Option<Component>,
    /// The cases of a [`FUZZ`] check.
    pub cases: Option<Cases>,
    /// A dataset file with the rows for rewards; `None` for generated rows.
    pub rows: Option<PathBuf>,
    /// The file for the answer.
    pub reply: PathBuf,
    /// True if a refusal includes all its causes.
    pub verbose: bool,
}

/// A component of a library, and the configuration table to build it from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Component {
    /// Name of the component's point.
    pub point: String,
    /// Id of the component.
    pub id: String,
    /// Configuration keys of the component.
    pub keys: Vec<String>,
    /// Configuration table of the component.
    pub table: serde_json::Map<String, serde_json::Value>,
}

/// A child process's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The library cannot be loaded; the text is the reason.
    Refused(String),
    /// The components that the library offers.
    Components(Vec<Component>),
    /// The result of the check.
    Outcome(Outcome),
    /// All random cases ran; the number counts cases that were refused with an error.
    Fuzzed(u64),
    /// The random case of this number is running.
    Case(u64),
}

/// The child's whole work: performs the task in `json`.
pub fn perform(json: &str) -> Result<()> {
    let task: Task = serde_json::from_str(json).context("`--run-one` is for `host check` itself")?;
    remember_threads();
    let loaded = Loaded::by(task.library.as_deref());
    let reply = match &loaded {
        Err(error) => Reply::Refused(crate::report::terminal::sentence(error, task.verbose)),
        Ok(loaded) => task.answer(loaded)?,
    };
    task.write(&reply)
}

impl Task {
    fn write(&self, reply: &Reply) -> Result<()> {
        std::fs::write(&self.reply, serde_json::to_vec(reply)?)
            .with_context(|| format!("cannot write `{}`", self.reply.display()))
    }

    fn answer(&self, loaded: &Loaded) -> Result<Reply> {
        if self.check == ENTRY_POINT {
            return list(&loaded.image).map(Reply::Components);
        }
        if let Some((_, _, run)) = LIBRARY.iter().find(|(name, ..)| *name == self.check) {
            let outcome = run(loaded).unwrap_or_else(|error| Outcome::new(Status::Failed, error.message()));
            return Ok(Reply::Outcome(outcome));
        }
        let component = self.component.as_ref().with_context(|| format!("`{}` needs a component", self.check))?;
        let point = Point::ALL.into_iter().find(|point| point.name() == component.point);
        let subject = Subject {
            image: &loaded.image,
            point: point.with_context(|| format!("there is no point `{}`", component.point))?,
            id: &component.id,
            keys: &component.keys,
            table: &component.table,
            rows: self
                .rows
                .as_deref()
                .map(|path| data::rows(path).map(|rows| rows.into_iter().map(row).collect()))
                .transpose()?,
        };
        if let (Some(cases), FUZZ) = (self.cases, self.check.as_str()) {
            return Ok(self.fuzz(&subject, cases));
        }
        let check = of_components().find(|check| check.name == self.check);
        let check = check.with_context(|| format!("there is no check `{}`", self.check))?;
        Ok(Reply::Outcome(check.outcome(&subject)))
    }

    fn fuzz(&self, subject: &Subject<'_>, cases: Cases) -> Reply {
        if let Some(sentence) = subject.cannot_run() {
            return Reply::Outcome(Outcome::unchecked(sentence));
        }
        let fuzzed = fuzz::run(subject, cases, &mut |case| {
            // Only a crash needs this reply, and the next case writes it again.
            let _ = self.write(&Reply::Case(case));
        });
        fuzzed.map_or_else(|sentence| Reply::Outcome(Outcome::new(Status::Failed, sentence)), Reply::Fuzzed)
    }
}

/// A dataset row as a reward sees it.
fn row(example: Example) -> Row {
    let solution = example.target().to_owned();
    Row { prompt: example.prompt, answer: example.answer, solution, columns: example.columns }
}

fn list(image: &Image) -> Result<Vec<Component>> {
    let mut components = Vec::new();
    for point in Point::ALL {
        let mut infos = image.components(point).map_err(|differences| anyhow!(differences))?;
        // The linker decides the order in which an image lists them.
        infos.sort_by(|a, b| a.id.cmp(&b.id));
        for info in infos {
            components.push(Component {
                point: point.name().to_owned(),
                id: info.id.into_string(),
                keys: info.keys.into_iter().map(Into::into).collect(),
                table: serde_json::Map::new(),
            });
        }
    }
    Ok(components)
}
