//! The process that makes the checks of a library: its tasks and its answers, and the work itself.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use capo_plugin::testing::check::{Outcome, Row, Status, Subject};
use capo_plugin::{Image, Point};
use host_data::Example;
use serde::{Deserialize, Serialize};

use super::catalog::{ENTRY_POINT, FUZZ, LIBRARY, of_components};
use super::conduct::count_threads_from_here;
use super::fuzz::{self, Cases};
use super::library::Loaded;

/// What a process loads before its first task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// Path of the library; `None` for the built-in components.
    pub library: Option<PathBuf>,
    /// A dataset file with the rows for rewards; `None` for generated rows.
    pub rows: Option<PathBuf>,
    /// True if a refusal includes all its causes.
    pub verbose: bool,
}

/// A check for a process to make.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Name of the check.
    pub check: String,
    /// The component, for checks of a component.
    pub component: Option<Component>,
    /// The cases of a [`FUZZ`] check.
    pub cases: Option<Cases>,
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

/// An answer of a process.
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

/// The whole work of a process: loads a library and makes the checks that arrive through its
/// standard input, which is a socket.
pub fn work(setup: &str) -> Result<()> {
    let setup: Setup =
        serde_json::from_str(setup).context("`--work` is for `host check` itself")?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let mut socket = UnixStream::from(socket);
    let tasks = BufReader::new(socket.try_clone()?);
    // A library that reads its input reads no task.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    count_threads_from_here();
    let loaded = Loaded::by(setup.library.as_deref());
    let mut last = None;
    for line in tasks.lines() {
        let task: Task = serde_json::from_str(&line?)?;
        let component = task.component.as_ref().map(|one| one.id.clone());
        if component != last {
            count_threads_from_here();
            last = component;
        }
        let reply = match &loaded {
            Err(error) => Reply::Refused(crate::terminal::sentence(error, setup.verbose)),
            Ok(loaded) => task.answer(&setup, loaded, &mut socket)?,
        };
        write(&mut socket, &reply)?;
    }
    Ok(())
}

fn write(socket: &mut UnixStream, reply: &Reply) -> Result<()> {
    let line = serde_json::to_string(reply)? + "\n";
    socket
        .write_all(line.as_bytes())
        .context("cannot answer `host check`")
}

impl Task {
    fn answer(&self, setup: &Setup, loaded: &Loaded, socket: &mut UnixStream) -> Result<Reply> {
        let start = Instant::now();
        let outcome = if self.check == ENTRY_POINT {
            return list(&loaded.image).map(Reply::Components);
        } else if let Some((_, _, run)) = LIBRARY.iter().find(|(name, ..)| *name == self.check) {
            run(loaded).unwrap_or_else(|error| Outcome::new(Status::Failed, error.message()))
        } else {
            let component = self
                .component
                .as_ref()
                .with_context(|| format!("`{}` needs a component", self.check))?;
            let subject = component.subject(setup, loaded)?;
            match self.cases {
                Some(cases) if self.check == FUZZ => match take_cases(&subject, cases, socket) {
                    Ok(refused) => return Ok(Reply::Fuzzed(refused)),
                    Err(outcome) => outcome,
                },
                _ => of_components()
                    .find(|known| known.name == self.check)
                    .with_context(|| format!("there is no check `{}`", self.check))?
                    .outcome(&subject),
            }
        };
        Ok(Reply::Outcome(outcome, start.elapsed().as_secs_f64()))
    }
}

impl Component {
    /// True if the component is at one of these extension points.
    pub fn is_at(&self, points: &[Point]) -> bool {
        points.iter().any(|point| point.name() == self.point)
    }

    /// The component as its checks see it.
    fn subject<'a>(&'a self, setup: &Setup, loaded: &'a Loaded) -> Result<Subject<'a>> {
        let point = Point::ALL
            .into_iter()
            .find(|point| point.name() == self.point)
            .with_context(|| format!("there is no point `{}`", self.point))?;
        let rows = match &setup.rows {
            Some(path) => Some(host_data::rows(path)?.into_iter().map(row).collect()),
            None => None,
        };
        Ok(Subject {
            image: &loaded.image,
            point,
            id: &self.id,
            keys: &self.keys,
            table: &self.table,
            rows,
        })
    }
}

/// Runs random cases. Returns the number that the component refused, or what is wrong.
fn take_cases(
    subject: &Subject<'_>,
    cases: Cases,
    socket: &mut UnixStream,
) -> Result<u64, Outcome> {
    if let Some(sentence) = subject.cannot_run() {
        return Err(Outcome::unchecked(sentence));
    }
    fuzz::run(subject, cases, &mut |case| {
        // The parent learns which case it was that crashed or hung.
        let _ = write(socket, &Reply::Case(case));
    })
    .map_err(|sentence| Outcome::new(Status::Failed, sentence))
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
                keys: info.keys.into_iter().map(|key| key.name.into()).collect(),
                table: serde_json::Map::new(),
            });
        }
    }
    Ok(components)
}
