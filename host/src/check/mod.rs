//! `host check`: tests if a library keeps the rules of its extension points.
//!
//! Another process loads the library and makes its checks one after another, so that a crash or a
//! call that does not return is a result too. The parent never loads the library. After a check
//! that did not pass, the next one begins in a fresh process. The checks of a component come from
//! `capo_plugin::testing`; `catalog` adds those of the host.

mod catalog;
mod conduct;
mod fuzz;
pub mod host_metrics;
mod library;
mod process;
mod report;
mod settings;
mod task;

use std::path::PathBuf;

use anyhow::{Result, bail};
use capo_plugin::Point;
use capo_plugin::testing::check::{CREATION, Outcome, PANICS_CONTAINED, Status};

pub use conduct::cpu_time;
pub use settings::CheckArgs;

use crate::terminal::{self, say};
use catalog::{ENTRY_POINT, FUZZ, LIBRARY, of_components};
use conduct::STDOUT_QUIET;
use fuzz::Cases;
use process::{Answer, End, Worker};
use report::Report;
use task::{Component, Reply, Setup, Task, work};

/// Number of checks of a component that may hang before the remaining ones are left out.
const MOST_HANGS: usize = 2;

/// Checks libraries, or makes the checks of one as the child of such a process. Returns true if no
/// result is bad.
pub fn run(args: &CheckArgs, verbose: bool) -> Result<bool> {
    match &args.work {
        Some(setup) => work(setup).map(|()| true),
        None => check(args, verbose),
    }
}

fn check(args: &CheckArgs, verbose: bool) -> Result<bool> {
    if args.list {
        catalog::all()
            .into_iter()
            .for_each(|(name, about)| say(&format!("{name:<20}{about}")));
        return Ok(true);
    }
    catalog::check_names(&args.only)?;
    args.rows.as_deref().map(host_data::rows).transpose()?;
    let mut session = Session {
        args,
        verbose,
        report: Report::new(args.json),
    };
    let mut libraries = args
        .libraries()?
        .into_iter()
        .map(|path| session.open(path))
        .collect::<Result<Vec<_>>>()?;
    settings::apply(
        &args.set,
        libraries
            .iter_mut()
            .flat_map(|library| &mut library.components),
    )?;
    let alone = args.reproduce.as_deref().map(fuzz::parse).transpose()?;
    if let Some((id, _)) = &alone {
        settings::known(id, libraries.iter().flat_map(|library| &library.components))?;
    }
    for library in &mut libraries {
        let name = library.setup.library.as_ref().map_or_else(
            || report::BUILT_IN.to_owned(),
            |path| path.display().to_string(),
        );
        session.report.library(&name);
        match &alone {
            Some((id, cases)) => session.reproduce(library, id, *cases)?,
            None => session.library(library)?,
        }
    }
    Ok(session.report.close())
}

/// A library and the process that loads it.
struct Library {
    setup: Setup,
    components: Vec<Component>,
    /// Outcome of loading it, and the duration in seconds.
    entry: (Outcome, f64),
    /// `None` before the first check, and after one that did not pass.
    worker: Option<Worker>,
}

struct Session<'a> {
    args: &'a CheckArgs,
    verbose: bool,
    report: Report,
}

impl Session<'_> {
    /// Loads the library in a process of its own.
    fn open(&self, path: Option<PathBuf>) -> Result<Library> {
        let mut library = Library {
            setup: Setup {
                library: path,
                rows: self.args.rows.clone(),
                verbose: self.verbose,
            },
            components: Vec::new(),
            entry: (Outcome::new(Status::Success, ""), 0.0),
            worker: None,
        };
        let answer = self.ask(&mut library, ENTRY_POINT, None, None)?;
        let outcome = match self.reply(&answer) {
            Err(outcome) => outcome,
            Ok(Reply::Refused(sentence)) => bail!("{sentence}"),
            Ok(Reply::Components(components)) => {
                let sentence = format!("it loads and offers {}", counts(&components));
                library.components = components;
                Outcome::new(Status::Success, sentence)
            }
            Ok(other) => bail!("unexpected answer {other:?}"),
        };
        library.entry = (outcome, answer.seconds);
        Ok(library)
    }

    fn library(&mut self, library: &mut Library) -> Result<()> {
        let (outcome, seconds) = library.entry.clone();
        let is_bad = outcome.is_bad();
        if self.args.wants(ENTRY_POINT) || is_bad {
            self.report.add(None, ENTRY_POINT, outcome, seconds);
        }
        if is_bad {
            return Ok(());
        }
        for (check, ..) in LIBRARY {
            if self.args.wants(check) {
                let (outcome, seconds) = self.outcome(library, check, None)?;
                self.report.add(None, check, outcome, seconds);
            }
        }
        for component in library.components.clone() {
            self.component(library, &component)?;
        }
        Ok(())
    }

    fn component(&mut self, library: &mut Library, component: &Component) -> Result<()> {
        self.report.component(component);
        let mut hangs = 0;
        let mut built = true;
        let wanted = of_components()
            .filter(|check| self.args.wants(check.name) && component.is_at(check.points));
        for check in wanted {
            let (outcome, seconds) = if hangs >= MOST_HANGS {
                (
                    Outcome::new(Status::Skipped, "checks before it did not come back"),
                    0.0,
                )
            } else if !built && !check.without_instance {
                (Outcome::unchecked("the component could not be built"), 0.0)
            } else {
                self.outcome(library, check.name, Some(component))?
            };
            let hung = seconds >= self.args.timeout as f64;
            hangs += if hung && check.name == CREATION {
                MOST_HANGS
            } else {
                usize::from(hung)
            };
            built &= check.name != CREATION || outcome.status == Status::Success;
            self.report
                .add(Some(component), check.name, outcome, seconds);
        }
        if self.args.fuzz > 0 && self.args.wants(FUZZ) && hangs < MOST_HANGS && built {
            let cases = Cases {
                seed: self.args.seed,
                first: 0,
                count: self.args.fuzz,
            };
            self.fuzz(library, component, cases)?;
        }
        Ok(())
    }

    /// Runs random cases of the component `id` again.
    fn reproduce(&mut self, library: &mut Library, id: &str, cases: Cases) -> Result<()> {
        for component in library.components.clone() {
            if component.id == id {
                self.report.component(&component);
                self.fuzz(library, &component, cases)?;
            }
        }
        Ok(())
    }

    /// Runs the random cases; the first bad case is the outcome.
    fn fuzz(&mut self, library: &mut Library, component: &Component, cases: Cases) -> Result<()> {
        let answer = self.ask(library, FUZZ, Some(component), Some(cases))?;
        let outcome = match self.reply(&answer) {
            Ok(Reply::Fuzzed(refused)) => {
                let Cases { seed, count, .. } = cases;
                let sentence = format!(
                    "{count} random inputs of seed {seed}, {refused} refused with a sentence"
                );
                Outcome::new(Status::Success, sentence)
            }
            Ok(Reply::Outcome(outcome, _)) => outcome,
            Ok(other) => bail!("unexpected answer {other:?}"),
            Err(outcome) => with_case(outcome, &answer, component, cases.seed),
        };
        self.report
            .add(Some(component), FUZZ, outcome, answer.seconds);
        Ok(())
    }

    /// Makes one check. Returns its outcome and its duration in seconds.
    fn outcome(
        &self,
        library: &mut Library,
        check: &'static str,
        component: Option<&Component>,
    ) -> Result<(Outcome, f64)> {
        let answer = self.ask(library, check, component, None)?;
        let (outcome, seconds) = match self.reply(&answer) {
            Err(outcome) => (outcome, answer.seconds),
            Ok(Reply::Outcome(outcome, seconds)) => (heard(check, outcome, &answer), seconds),
            Ok(Reply::Refused(sentence)) => {
                (Outcome::new(Status::Failed, sentence), answer.seconds)
            }
            Ok(other) => bail!("unexpected answer {other:?}"),
        };
        if outcome.is_bad() {
            library.worker = None;
        }
        Ok((outcome, seconds))
    }

    /// Passes a task to the library's process, which is started if there is none.
    fn ask(
        &self,
        library: &mut Library,
        check: &str,
        component: Option<&Component>,
        cases: Option<Cases>,
    ) -> Result<Answer> {
        let mut worker = match library.worker.take() {
            Some(worker) => worker,
            None => Worker::start(&library.setup)?,
        };
        let task = Task {
            check: check.to_owned(),
            component: component.cloned(),
            cases,
        };
        let answer = worker.ask(&task, self.args.limit())?;
        if self.verbose && !answer.stderr.is_empty() {
            terminal::note(answer.stderr.trim_end());
        }
        if matches!(answer.end, End::Reply(_)) {
            library.worker = Some(worker);
        }
        Ok(answer)
    }

    /// The reply of the process, or an outcome if it gave none.
    fn reply(&self, answer: &Answer) -> Result<Reply, Outcome> {
        match &answer.end {
            End::Reply(reply) => Ok(reply.clone()),
            End::Exit(exit) => Err(Outcome::new(
                Status::Crashed,
                process::describe(*exit, &answer.stderr),
            )),
            End::Timeout => Err(Outcome::new(
                Status::Failed,
                format!("it did not come back within {} s", self.args.timeout),
            )),
        }
    }
}

/// The number of components at each extension point, in words.
fn counts(components: &[Component]) -> String {
    Point::ALL
        .map(|point| {
            let count = components.iter().filter(|one| one.is_at(&[point])).count();
            format!("{count} {}", point.name().replace('_', " "))
        })
        .join(", ")
}

/// The outcome, corrected by the output of the process, which only the parent sees.
fn heard(check: &str, outcome: Outcome, answer: &Answer) -> Outcome {
    let Answer { stdout, stderr, .. } = answer;
    if check == STDOUT_QUIET && !stdout.is_empty() {
        let beginning: String = stdout.chars().take(40).collect();
        return Outcome::new(
            Status::Failed,
            format!(
                "it wrote {} bytes to standard output: {beginning:?} (use `ctx.warn`)",
                stdout.len()
            ),
        );
    }
    if check == PANICS_CONTAINED
        && outcome.status == Status::Success
        && let Some((_, words)) = stderr.split_once(" panicked at ")
    {
        let words = words.lines().nth(1).unwrap_or_default();
        return Outcome::new(
            Status::Warning,
            format!("it panicked where no call could answer, as in `drop`: {words}"),
        );
    }
    outcome
}

/// The outcome of a crash or a hang on a random batch, with the number of that case.
fn with_case(outcome: Outcome, answer: &Answer, component: &Component, seed: u64) -> Outcome {
    let Some(case) = answer.case else {
        return outcome;
    };
    let name = fuzz::name(&component.id, seed, case);
    let sentence = outcome.sentence;
    Outcome {
        sentence: format!("{sentence} (run it alone with `--reproduce {name}`)"),
        ..outcome
    }
}

impl CheckArgs {
    /// The files to check; a single `None` is the built-in components.
    fn libraries(&self) -> Result<Vec<Option<PathBuf>>> {
        if self.library.is_empty() {
            return Ok(vec![None]);
        }
        self.library
            .iter()
            .map(|name| Ok(Some(capo_loader::find::find(name)?.path)))
            .collect()
    }
}
