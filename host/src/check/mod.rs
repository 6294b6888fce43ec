//! `host check`: tests if a library keeps the rules of its extension points.
//!
//! Checks run in other processes, so that a crash or a call that does not return is a result too.
//! The parent never loads the library. Checks that need no process of their own share one first;
//! any that does not pass there runs again alone. The checks of a component come from
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

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use capo_plugin::Point;
use capo_plugin::testing::check::{CREATION, Check, Outcome, PANICS_CONTAINED, Status};

pub use conduct::cpu_time;
pub use settings::CheckArgs;

use crate::terminal::{self, say};
use catalog::{ENTRY_POINT, FUZZ, LIBRARY, of_components};
use conduct::{CALL_TIME, STDOUT_QUIET, THREADS};
use fuzz::Cases;
use process::End;
use report::Report;
use task::{Component, Reply, Task, perform};

/// Number of checks of a component that may hang before the remaining ones are left out.
const MOST_HANGS: usize = 2;
/// The checks that read the state or the output of their whole process.
const ALONE: [&str; 4] = [PANICS_CONTAINED, THREADS, STDOUT_QUIET, CALL_TIME];
/// Number of random inputs that one process checks.
const CASES_PER_PROCESS: u64 = 200;

/// Checks libraries, or does one check as the child of such a process. Returns true if no result is
/// bad.
pub fn run(args: &CheckArgs, verbose: bool) -> Result<bool> {
    match &args.run_one {
        Some(task) => perform(task).map(|()| true),
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
    for library in &libraries {
        let name = library.path.as_ref().map_or_else(
            || report::BUILT_IN.to_owned(),
            |path| path.display().to_string(),
        );
        session.report.library(&name);
        match &alone {
            Some((id, cases)) => {
                for component in library
                    .components
                    .iter()
                    .filter(|component| component.id == *id)
                {
                    session.report.component(component);
                    session.fuzz(library, component, *cases)?;
                }
            }
            None => session.library(library)?,
        }
    }
    Ok(session.report.close())
}

/// A library and the result of loading it.
struct Library {
    /// The library's file; `None` for the built-in components.
    path: Option<PathBuf>,
    components: Vec<Component>,
    /// Outcome of loading it, and the duration in seconds.
    entry: (Outcome, f64),
}

struct Session<'a> {
    args: &'a CheckArgs,
    verbose: bool,
    report: Report,
}

impl Session<'_> {
    /// Loads the library in a child process.
    fn open(&self, path: Option<PathBuf>) -> Result<Library> {
        let mut library = Library {
            path,
            components: Vec::new(),
            entry: (Outcome::new(Status::Success, ""), 0.0),
        };
        let end = self.run(&library, &[ENTRY_POINT], None, None)?;
        let outcome = match self.ended(&end) {
            Err(outcome) => outcome,
            Ok(Reply::Refused(sentence)) => bail!("{sentence}"),
            Ok(Reply::Components(components)) => {
                let counts = Point::ALL.map(|point| {
                    let count = components
                        .iter()
                        .filter(|component| component.point == point.name())
                        .count();
                    format!("{count} {}", point.name().replace('_', " "))
                });
                library.components = components;
                Outcome::new(
                    Status::Success,
                    format!("it loads and offers {}", counts.join(", ")),
                )
            }
            Ok(other) => bail!("unexpected answer {other:?}"),
        };
        Ok(Library {
            entry: (outcome, end.seconds),
            ..library
        })
    }

    fn library(&mut self, library: &Library) -> Result<()> {
        let (outcome, seconds) = &library.entry;
        if self.args.wants(ENTRY_POINT) || outcome.is_bad() {
            self.report
                .add(None, ENTRY_POINT, outcome.clone(), *seconds);
        }
        if outcome.is_bad() {
            return Ok(());
        }
        let checks: Vec<_> = LIBRARY
            .iter()
            .map(|(check, ..)| *check)
            .filter(|check| self.args.wants(check))
            .collect();
        let mut passed = self.together(library, &checks, None)?;
        for check in checks {
            let (outcome, seconds) = passed
                .remove(check)
                .map_or_else(|| self.outcome(library, check, None), Ok)?;
            self.report.add(None, check, outcome, seconds);
        }
        library
            .components
            .iter()
            .try_for_each(|component| self.component(library, component))
    }

    fn component(&mut self, library: &Library, component: &Component) -> Result<()> {
        self.report.component(component);
        let (mut hangs, mut built) = (0, true);
        let at_point =
            |points: &[Point]| points.iter().any(|point| point.name() == component.point);
        let wanted = |check: &&Check| self.args.wants(check.name) && at_point(check.points);
        let checks: Vec<_> = of_components().filter(wanted).collect();
        let shared: Vec<_> = checks
            .iter()
            .map(|check| check.name)
            .filter(|name| !ALONE.contains(name))
            .collect();
        let mut passed = self.together(library, &shared, Some(component))?;
        for check in checks {
            let (outcome, seconds) = if hangs >= MOST_HANGS {
                (
                    Outcome::new(Status::Skipped, "checks before it did not come back"),
                    0.0,
                )
            } else if !built && !check.without_instance {
                (Outcome::unchecked("the component could not be built"), 0.0)
            } else if let Some(outcome) = passed.remove(check.name) {
                outcome
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
            self.fuzz(
                library,
                component,
                Cases {
                    seed: self.args.seed,
                    first: 0,
                    count: self.args.fuzz,
                },
            )?;
        }
        Ok(())
    }

    /// Runs the random cases in portions; the first bad case is the outcome.
    fn fuzz(&mut self, library: &Library, component: &Component, cases: Cases) -> Result<()> {
        let (mut refused, mut seconds, last) = (0, 0.0, cases.first + cases.count);
        let mut bad = None;
        for first in (cases.first..last).step_by(CASES_PER_PROCESS as usize) {
            let portion = Cases {
                first,
                count: CASES_PER_PROCESS.min(last - first),
                ..cases
            };
            let end = self.run(library, &[FUZZ], Some(component), Some(portion))?;
            seconds += end.seconds;
            bad = match self.ended(&end) {
                Ok(Reply::Fuzzed(count)) => {
                    refused += count;
                    continue;
                }
                Ok(Reply::Outcome(outcome, _)) => Some(outcome),
                Ok(other) => bail!("unexpected answer {other:?}"),
                Err(outcome) => Some(with_case(outcome, &end, component, cases.seed)),
            };
            break;
        }
        let Cases { seed, count, .. } = cases;
        let sentence =
            format!("{count} random inputs of seed {seed}, {refused} refused with a sentence");
        let outcome = bad.unwrap_or_else(|| Outcome::new(Status::Success, sentence));
        self.report.add(Some(component), FUZZ, outcome, seconds);
        Ok(())
    }

    /// Runs `checks` in one child process. Returns those that passed, with their durations in
    /// seconds.
    fn together(
        &self,
        library: &Library,
        checks: &[&'static str],
        component: Option<&Component>,
    ) -> Result<HashMap<&'static str, (Outcome, f64)>> {
        if checks.len() < 2 {
            return Ok(HashMap::new());
        }
        let end = self.run(library, checks, component, None)?;
        let passed = |(check, reply)| match reply {
            Reply::Outcome(outcome, seconds) if !outcome.is_bad() => {
                Some((check, (outcome, seconds)))
            }
            _ => None,
        };
        Ok(checks
            .iter()
            .copied()
            .zip(end.replies)
            .filter_map(passed)
            .collect())
    }

    /// Runs one check in a child process.
    fn outcome(
        &self,
        library: &Library,
        check: &'static str,
        component: Option<&Component>,
    ) -> Result<(Outcome, f64)> {
        let end = self.run(library, &[check], component, None)?;
        match self.ended(&end) {
            Err(outcome) => Ok((outcome, end.seconds)),
            Ok(Reply::Outcome(outcome, seconds)) => Ok((heard(check, outcome, &end), seconds)),
            Ok(Reply::Refused(sentence)) => {
                Ok((Outcome::new(Status::Failed, sentence), end.seconds))
            }
            Ok(other) => bail!("unexpected answer {other:?}"),
        }
    }

    fn run(
        &self,
        library: &Library,
        checks: &[&str],
        component: Option<&Component>,
        cases: Option<Cases>,
    ) -> Result<End> {
        let task = Task {
            library: library.path.clone(),
            checks: checks.iter().map(|&check| check.to_owned()).collect(),
            component: component.cloned(),
            cases,
            rows: self.args.rows.clone(),
            reply: PathBuf::new(),
            verbose: self.verbose,
        };
        let end = process::run(task, self.args.limit())?;
        if self.verbose && !end.stderr.is_empty() {
            terminal::note(end.stderr.trim_end());
        }
        Ok(end)
    }

    /// The child's answer, or an outcome if the child ended without an answer.
    fn ended(&self, end: &End) -> Result<Reply, Outcome> {
        let Some(exit) = end.exit else {
            return Err(Outcome::new(
                Status::Failed,
                format!("it did not come back within {} s", self.args.timeout),
            ));
        };
        match (end.replies.last(), exit.success()) {
            (Some(reply), true) if !matches!(reply, Reply::Case(_)) => Ok(reply.clone()),
            _ => Err(Outcome::new(
                Status::Crashed,
                process::describe(exit, &end.stderr),
            )),
        }
    }
}

/// The outcome, corrected by the child's output, which only the parent sees.
fn heard(check: &str, outcome: Outcome, end: &End) -> Outcome {
    if check == STDOUT_QUIET && !end.stdout.is_empty() {
        let beginning: String = end.stdout.chars().take(40).collect();
        let bytes = end.stdout.len();
        return Outcome::new(
            Status::Failed,
            format!("it wrote {bytes} bytes to standard output: {beginning:?} (use `ctx.warn`)"),
        );
    }
    if check == PANICS_CONTAINED
        && outcome.status == Status::Success
        && let Some((_, words)) = end.stderr.split_once(" panicked at ")
    {
        let words = words.lines().nth(1).unwrap_or_default();
        return Outcome::new(
            Status::Warning,
            format!("it panicked where no call could answer, as in `drop`: {words}"),
        );
    }
    outcome
}

/// The outcome of a child that crashed on a random batch, with the number of that case.
fn with_case(outcome: Outcome, end: &End, component: &Component, seed: u64) -> Outcome {
    let Some(Reply::Case(case)) = end.replies.last() else {
        return outcome;
    };
    let name = fuzz::name(&component.id, seed, *case);
    Outcome {
        sentence: format!(
            "{} (run it alone with `--reproduce {name}`)",
            outcome.sentence
        ),
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
