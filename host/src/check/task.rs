//! Checks in a process of their own: the parent's task and the child's answers.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use capo_plugin::testing::check::{Outcome, Row, Status, Subject};
use capo_plugin::{Image, Point};
use host_data::Example;
use serde::{Deserialize, Serialize};

use super::catalog::{ENTRY_POINT, FUZZ, LIBRARY, of_components};
use super::conduct::remember_threads;
use super::fuzz::{self, Cases};
use super::library::Loaded;

/// The task of a child process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Path of the library; `None` for the built-in components.
    pub library: Option<PathBuf>,
    /// Names of the checks, which run one after another until one ends the process.
    pub checks: Vec<String>,
    /// The component, for checks of a component.
    pub component: Option<Component>,
    /// The cases of a [`FUZZ`] check.
    pub cases: Option<Cases>,
    /// A dataset file with the rows for rewards; `None` for generated rows.
    pub rows: Option<PathBuf>,
    /// The file for the answers, one line each.
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
    /// The result of a check, and its duration in seconds.
    Outcome(Outcome, f64),
    /// All random cases ran; the number counts cases that were refused with an error.
    Fuzzed(u64),
    /// The random case of this number is running.
    Case(u64),
}

/// The child's whole work: performs the task in `json`.
pub fn perform(json: &str) -> Result<()> {
    let task: Task =
        serde_json::from_str(json).context("`--run-one` is for `host check` itself")?;
    remember_threads();
    let loaded = Loaded::by(task.library.as_deref());
    match &loaded {
        Err(error) => task.write(&Reply::Refused(crate::terminal::sentence(
            error,
            task.verbose,
        ))),
        Ok(loaded) => task
            .checks
            .iter()
            .try_for_each(|check| task.write(&task.answer(check, loaded)?)),
    }
}

impl Task {
    fn write(&self, reply: &Reply) -> Result<()> {
        let line = serde_json::to_string(reply)? + "\n";
        let file = OpenOptions::new().append(true).open(&self.reply);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .with_context(|| format!("cannot write `{}`", self.reply.display()))
    }

    fn answer(&self, check: &str, loaded: &Loaded) -> Result<Reply> {
        let start = Instant::now();
        let timed = |outcome| Reply::Outcome(outcome, start.elapsed().as_secs_f64());
        if check == ENTRY_POINT {
            return list(&loaded.image).map(Reply::Components);
        }
        if let Some((_, _, run)) = LIBRARY.iter().find(|(name, ..)| *name == check) {
            return Ok(timed(run(loaded).unwrap_or_else(|error| {
                Outcome::new(Status::Failed, error.message())
            })));
        }
        let component = self
            .component
            .as_ref()
            .with_context(|| format!("`{check}` needs a component"))?;
        let point = Point::ALL
            .into_iter()
            .find(|point| point.name() == component.point);
        let subject = Subject {
            image: &loaded.image,
            point: point.with_context(|| format!("there is no point `{}`", component.point))?,
            id: &component.id,
            keys: &component.keys,
            table: &component.table,
            rows: self
                .rows
                .as_deref()
                .map(|path| host_data::rows(path).map(|rows| rows.into_iter().map(row).collect()))
                .transpose()?,
        };
        if let (Some(cases), FUZZ) = (self.cases, check) {
            let fuzzed = match subject.cannot_run() {
                Some(sentence) => Err(Outcome::unchecked(sentence)),
                None => self
                    .fuzz(&subject, cases)
                    .map_err(|sentence| Outcome::new(Status::Failed, sentence)),
            };
            return Ok(fuzzed.map_or_else(timed, Reply::Fuzzed));
        }
        let known = of_components().find(|known| known.name == check);
        Ok(timed(
            known
                .with_context(|| format!("there is no check `{check}`"))?
                .outcome(&subject),
        ))
    }

    fn fuzz(&self, subject: &Subject<'_>, cases: Cases) -> Result<u64, String> {
        fuzz::run(subject, cases, &mut |case| {
            // Only a crash needs this reply: it tells the parent which case it was.
            let _ = self.write(&Reply::Case(case));
        })
    }
}

/// A dataset row as a reward sees it.
fn row(example: Example) -> Row {
    let solution = example.target().to_owned();
    Row {
        prompt: example.prompt,
        answer: example.answer,
        solution,
        columns: example.columns,
    }
}

fn list(image: &Image) -> Result<Vec<Component>> {
    let mut components = Vec::new();
    for point in Point::ALL {
        let mut infos = image
            .components(point)
            .map_err(|differences| anyhow!(differences))?;
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
