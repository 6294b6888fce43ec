//! One check in a process of its own: what the parent asks, what the child answers.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use capo_plugin::{Image, Point};
use serde::{Deserialize, Serialize};

use super::catalog::{COMPONENT, ENTRY_POINT, FUZZ, LIBRARY};
use super::conduct::count_threads;
use super::fuzz::{self, Cases};
use super::instance::is_refusal;
use super::library::Loaded;
use super::outcome::Outcome;
use super::subject::Subject;
use super::subject::made_up_rows;
use super::table;
use crate::data;

/// What a child is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// The library, or none for what is built in.
    pub library: Option<PathBuf>,
    /// The check's name.
    pub check: String,
    /// The component, for checks of a component.
    pub component: Option<Component>,
    /// The cases of a [`FUZZ`] check.
    pub cases: Option<Cases>,
    /// A dataset file whose rows rewards see; none for rows that are made up.
    pub rows: Option<PathBuf>,
    /// The file to answer in.
    pub reply: PathBuf,
    /// Whether a refusal comes with all its causes.
    pub verbose: bool,
}

/// A component of a library, and the table to build it from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Component {
    /// Its point's name.
    pub point: String,
    /// Its id.
    pub id: String,
    /// Its keys.
    pub keys: Vec<String>,
    /// Its table.
    pub table: serde_json::Map<String, serde_json::Value>,
}

/// What a child answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The library cannot be loaded.
    Refused(String),
    /// What the library offers.
    Components(Vec<Component>),
    /// What came of the check.
    Outcome(Outcome),
    /// All cases ran; so many were refused with a sentence.
    Fuzzed(u64),
    /// This case is running.
    Case(u64),
}

/// The child's whole work: does the task that `json` describes.
///
/// # Errors
///
/// When there is no such task, or the answer cannot be written.
pub fn perform(json: &str) -> Result<()> {
    let task: Task = serde_json::from_str(json).context("`--run-one` is for `host check` itself")?;
    let threads = count_threads().unwrap_or(0);
    let loaded = Loaded::by(task.library.as_deref());
    let reply = match &loaded {
        Err(error) => Reply::Refused(crate::report::terminal::sentence(error, task.verbose)),
        Ok(loaded) => task.answer(loaded, threads)?,
    };
    task.write(&reply)
}

impl Task {
    fn write(&self, reply: &Reply) -> Result<()> {
        std::fs::write(&self.reply, serde_json::to_vec(reply)?)
            .with_context(|| format!("cannot write `{}`", self.reply.display()))
    }

    fn answer(&self, loaded: &Loaded, threads: usize) -> Result<Reply> {
        if self.check == ENTRY_POINT {
            return list(&loaded.image).map(Reply::Components);
        }
        if let Some(check) = LIBRARY.iter().find(|check| check.name == self.check) {
            let outcome = (check.run)(loaded).unwrap_or_else(|error| Outcome::failed(error.message()));
            return Ok(Reply::Outcome(outcome));
        }
        let component = self.component.as_ref().with_context(|| format!("`{}` needs a component", self.check))?;
        let point = Point::ALL.into_iter().find(|point| point.name() == component.point);
        let rows = self.rows.as_deref().map_or_else(|| Ok(made_up_rows()), data::rows)?;
        let subject = Subject {
            image: &loaded.image,
            point: point.with_context(|| format!("there is no point `{}`", component.point))?,
            id: &component.id,
            keys: &component.keys,
            table: &component.table,
            rows: &rows,
            threads,
        };
        self.examine(&subject)
    }

    /// Why a check that needs a working instance says nothing about this one: it needs keys, or rows of its own kind.
    fn cannot_run(&self, subject: &Subject<'_>) -> Option<String> {
        match subject.create() {
            Err(error) => Some(table::needs_keys(subject, &error)),
            Ok(mut reward) if subject.point == Point::Reward && self.rows.is_none() => {
                let error = reward.step(&subject.stream(0)).err().filter(is_refusal)?;
                Some(format!("it refuses rows that are made up: {error} (give a dataset of its kind as `--rows FILE`)"))
            }
            Ok(_) => None,
        }
    }

    fn examine(&self, subject: &Subject<'_>) -> Result<Reply> {
        let check = COMPONENT.iter().find(|check| check.name == self.check);
        if !check.is_some_and(|check| check.without_instance)
            && let Some(sentence) = self.cannot_run(subject)
        {
            return Ok(Reply::Outcome(Outcome::unchecked(unnamed(&sentence, subject))));
        }
        if let (Some(cases), FUZZ) = (self.cases, self.check.as_str()) {
            let fuzzed = fuzz::run(subject, cases, &mut |case| {
                // Only a crash needs it, and it is written again before the next case.
                let _ = self.write(&Reply::Case(case));
            });
            return Ok(fuzzed
                .map_or_else(|sentence| Reply::Outcome(Outcome::failed(unnamed(&sentence, subject))), Reply::Fuzzed));
        }
        let check = check.with_context(|| format!("there is no check `{}`", self.check))?;
        let outcome = (check.run)(subject).unwrap_or_else(|error| Outcome::failed(error.message()));
        Ok(Reply::Outcome(Outcome { sentence: unnamed(&outcome.sentence, subject), ..outcome }))
    }
}

/// A sentence without the component's name, which stands above it in the report.
fn unnamed(sentence: &str, subject: &Subject<'_>) -> String {
    sentence.replacen(&format!("component `{}`: ", subject.id), "", 1)
}

fn list(image: &Image) -> Result<Vec<Component>> {
    let mut components = Vec::new();
    for point in Point::ALL {
        let mut infos = image.components(point).map_err(|differences| anyhow!(differences))?;
        // The order in which an image lists them is its linker's.
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
