//! `host check`: whether a library keeps the rules of its extension points.
//!
//! Named checks, each in a process of its own, so that a crash or a call that does not come back is a result too. The parent
//! never loads the library. `catalog` lists the checks, the files beside it hold them by theme; `input`, `instance` and `subject`
//! are the places that know the points.

mod batches;
mod catalog;
mod conduct;
mod fuzz;
mod gradient;
mod input;
mod instance;
mod invariance;
mod library;
mod outcome;
mod process;
mod ranks;
mod report;
mod settings;
mod state;
mod subject;
mod table;
mod task;

use std::path::PathBuf;

use anyhow::{Result, bail};
use capo_plugin::Point;

pub use conduct::cpu_time;
pub use settings::CheckArgs;
use task::perform;

use crate::data;
use crate::report::terminal::{self, say};
use catalog::{COMPONENT, CREATION, ENTRY_POINT, FUZZ, LIBRARY, PANICS_CONTAINED, STDOUT_QUIET};
use fuzz::Cases;
use outcome::{Outcome, Status};
use process::End;
use report::Report;
use task::{Component, Reply, Task};

/// How many checks of a component may not come back before the rest is left out.
const MOST_HANGS: usize = 2;
/// Random inputs of one process.
const CASES_PER_PROCESS: u64 = 200;

/// Checks libraries, or does one check as the child of such a process; whether nothing is bad.
///
/// # Errors
///
/// A library that is not found or is no plugin, an unknown check, component or case.
pub fn run(args: &CheckArgs, verbose: bool) -> Result<bool> {
    match &args.run_one {
        Some(task) => perform(task).map(|()| true),
        None => check(args, verbose),
    }
}

fn check(args: &CheckArgs, verbose: bool) -> Result<bool> {
    if args.list {
        catalog::all().into_iter().for_each(|(name, about)| say(&format!("{name:<20}{about}")));
        return Ok(true);
    }
    catalog::check_names(&args.only)?;
    args.rows.as_deref().map(data::rows).transpose()?;
    let session = Session { args, verbose };
    let mut libraries = Vec::new();
    for path in args.libraries()? {
        let (outcome, components, seconds) = session.open(path.as_ref())?;
        libraries.push((path, outcome, components, seconds));
    }
    settings::apply(&args.set, libraries.iter_mut().flat_map(|(_, _, components, _)| components))?;
    let alone = args.reproduce.as_deref().map(fuzz::parse).transpose()?;
    if let Some((id, _)) = &alone {
        settings::known(id, libraries.iter().flat_map(|(_, _, components, _)| components))?;
    }
    let mut report = Report::new(args.json);
    for (path, outcome, components, seconds) in &libraries {
        report.library(&path.as_ref().map_or_else(|| report::BUILT_IN.to_owned(), |path| path.display().to_string()));
        match &alone {
            Some((id, cases)) => session.reproduce(&mut report, path.as_ref(), components, id, *cases)?,
            None => {
                if args.wants(ENTRY_POINT) || outcome.is_bad() {
                    report.add(None, ENTRY_POINT, outcome.clone(), *seconds);
                }
                if !outcome.is_bad() {
                    session.library(&mut report, path.as_ref(), components)?;
                }
            }
        }
    }
    Ok(report.close())
}

struct Session<'a> {
    args: &'a CheckArgs,
    verbose: bool,
}

impl Session<'_> {
    /// Loads the library in a child: whether that went well, and what it offers.
    fn open(&self, path: Option<&PathBuf>) -> Result<(Outcome, Vec<Component>, f64)> {
        let end = self.run(path, ENTRY_POINT, None, None)?;
        let seconds = end.seconds;
        match self.ended(&end) {
            Err(outcome) => Ok((outcome, Vec::new(), seconds)),
            Ok(Reply::Refused(sentence)) => bail!("{sentence}"),
            Ok(Reply::Components(components)) => {
                let count = |point: &str| components.iter().filter(|component| component.point == point).count();
                let counts =
                    Point::ALL.map(|point| format!("{} {}", count(point.name()), point.name().replace('_', " ")));
                Ok((Outcome::success(format!("it loads and offers {}", counts.join(", "))), components, seconds))
            }
            Ok(other) => bail!("unexpected answer {other:?}"),
        }
    }

    fn library(&self, report: &mut Report, path: Option<&PathBuf>, components: &[Component]) -> Result<()> {
        for check in LIBRARY.iter().filter(|check| self.args.wants(check.name)) {
            let (outcome, seconds) = self.outcome(path, check.name, None)?;
            report.add(None, check.name, outcome, seconds);
        }
        for component in components {
            self.component(report, path, component)?;
        }
        Ok(())
    }

    fn component(&self, report: &mut Report, path: Option<&PathBuf>, component: &Component) -> Result<()> {
        report.component(component);
        let (mut hangs, mut built) = (0, true);
        let at_point = |points: &[Point]| points.iter().any(|point| point.name() == component.point);
        for check in COMPONENT.iter().filter(|check| self.args.wants(check.name) && at_point(check.points)) {
            let (outcome, seconds) = if hangs >= MOST_HANGS {
                (Outcome::skipped("checks before it did not come back"), 0.0)
            } else if !built && !check.without_instance {
                (Outcome::unchecked("the component could not be built"), 0.0)
            } else {
                self.outcome(path, check.name, Some(component))?
            };
            let hung = seconds >= self.args.timeout as f64;
            hangs += if hung && check.name == CREATION { MOST_HANGS } else { usize::from(hung) };
            built &= check.name != CREATION || outcome.status == Status::Success;
            report.add(Some(component), check.name, outcome, seconds);
        }
        if self.args.fuzz > 0 && self.args.wants(FUZZ) && hangs < MOST_HANGS && built {
            let cases = Cases { seed: self.args.seed, first: 0, count: self.args.fuzz };
            self.fuzz(report, path, component, cases)?;
        }
        Ok(())
    }

    fn reproduce(
        &self,
        report: &mut Report,
        path: Option<&PathBuf>,
        components: &[Component],
        id: &str,
        cases: Cases,
    ) -> Result<()> {
        for component in components.iter().filter(|component| component.id == id) {
            report.component(component);
            self.fuzz(report, path, component, cases)?;
        }
        Ok(())
    }

    /// Runs the cases in portions; the first bad one is the outcome.
    fn fuzz(&self, report: &mut Report, path: Option<&PathBuf>, component: &Component, cases: Cases) -> Result<()> {
        let (mut refused, mut seconds, last) = (0, 0.0, cases.first + cases.count);
        let mut bad = None;
        for first in (cases.first..last).step_by(CASES_PER_PROCESS as usize) {
            let portion = Cases { first, count: CASES_PER_PROCESS.min(last - first), ..cases };
            let end = self.run(path, FUZZ, Some(component), Some(portion))?;
            seconds += end.seconds;
            bad = match self.ended(&end) {
                Ok(Reply::Fuzzed(count)) => {
                    refused += count;
                    continue;
                }
                Ok(Reply::Outcome(outcome)) => Some(outcome),
                Ok(other) => bail!("unexpected answer {other:?}"),
                Err(outcome) => Some(with_case(outcome, &end, component, cases.seed)),
            };
            break;
        }
        let all_well = || {
            let count = cases.count;
            Outcome::success(format!("{count} random inputs of seed {}, {refused} refused with a sentence", cases.seed))
        };
        report.add(Some(component), FUZZ, bad.unwrap_or_else(all_well), seconds);
        Ok(())
    }

    /// Runs one check in a child.
    fn outcome(&self, path: Option<&PathBuf>, check: &str, component: Option<&Component>) -> Result<(Outcome, f64)> {
        let end = self.run(path, check, component, None)?;
        let outcome = match self.ended(&end) {
            Err(outcome) => outcome,
            Ok(Reply::Outcome(outcome)) => heard(check, outcome, &end),
            Ok(Reply::Refused(sentence)) => Outcome::failed(sentence),
            Ok(other) => bail!("unexpected answer {other:?}"),
        };
        Ok((outcome, end.seconds))
    }

    fn run(
        &self,
        path: Option<&PathBuf>,
        check: &str,
        component: Option<&Component>,
        cases: Option<Cases>,
    ) -> Result<End> {
        let task = Task {
            library: path.cloned(),
            check: check.to_owned(),
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

    /// The child's answer, or the outcome of a child that did not live to give one.
    fn ended(&self, end: &End) -> Result<Reply, Outcome> {
        let Some(exit) = end.exit else {
            return Err(Outcome::failed(format!("it did not come back within {} s", self.args.timeout)));
        };
        match (&end.reply, exit.success()) {
            (Some(reply), true) if !matches!(reply, Reply::Case(_)) => Ok(reply.clone()),
            _ => Err(Outcome::crashed(process::describe(exit, &end.stderr))),
        }
    }
}

/// The outcome, corrected by what the child wrote: only the parent hears that.
fn heard(check: &str, outcome: Outcome, end: &End) -> Outcome {
    if check == STDOUT_QUIET && !end.stdout.is_empty() {
        let beginning: String = end.stdout.chars().take(40).collect();
        let sentence =
            format!("it wrote {} bytes to standard output: {beginning:?} (use `ctx.warn`)", end.stdout.len());
        return Outcome::failed(sentence);
    }
    if check == PANICS_CONTAINED
        && outcome.status == Status::Success
        && let Some((_, words)) = end.stderr.split_once(" panicked at ")
    {
        let words = words.lines().nth(1).unwrap_or_default();
        return Outcome::warning(format!("it panicked where no call could answer, as in `drop`: {words}"));
    }
    outcome
}

/// The outcome of a child that died of a random batch, with the case that it was at.
fn with_case(outcome: Outcome, end: &End, component: &Component, seed: u64) -> Outcome {
    let Some(Reply::Case(case)) = end.reply else { return outcome };
    let name = fuzz::name(&component.id, seed, case);
    Outcome { sentence: format!("{} (run it alone with `--reproduce {name}`)", outcome.sentence), ..outcome }
}

impl CheckArgs {
    /// The files to check, or one none for what is built in.
    fn libraries(&self) -> Result<Vec<Option<PathBuf>>> {
        if self.library.is_empty() {
            return Ok(vec![None]);
        }
        let mut found = Vec::new();
        for name in &self.library {
            found.push(Some(capo_loader::find::find(name)?));
        }
        Ok(found)
    }
}
