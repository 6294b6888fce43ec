//! The checks by name: those of a component, from `capo_plugin::testing`, and those that only a
//! host can make.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use capo_plugin::testing::check::{CHECKS, Check, Subject, Verdict, failed, success};

use super::conduct;
use super::host_metrics;
use super::library::{self, Loaded};
use crate::stages::owners::{metric_name, of_tokens, reserved};

/// The check that lists a library's components; all other checks need its result.
pub const ENTRY_POINT: &str = "entry-point";
/// The check with random batches, which runs only with `--fuzz`.
pub const FUZZ: &str = "fuzz";

/// A check of a library: its name, its question, and its function.
pub type LibraryCheck = (&'static str, &'static str, fn(&Loaded) -> Verdict);

/// The checks of a library, in order.
pub const LIBRARY: [LibraryCheck; 5] = [
    ("load-time", "how much work loading is", library::load_time),
    (
        "panic-strategy",
        "panics unwind, so that they end no process",
        library::panic_strategy,
    ),
    (
        "unknown-extensions",
        "extension ids that do not exist are answered with none",
        library::unknown_extensions,
    ),
    (
        "component-ids",
        "ids are `vendor.name` and unique, descriptions are one line",
        library::component_ids,
    ),
    (
        "recipes",
        "recipes are TOML and hold what a recipe may",
        library::recipes,
    ),
];

/// The check of metric names that the host reserves.
static RECORD_NAMES: Check = Check::new(
    "record-names",
    "no number of the host is recorded under its name",
    record_names,
);

/// The checks of a component, in order.
pub fn of_components() -> impl Iterator<Item = &'static Check> {
    let values = CHECKS
        .iter()
        .position(|check| check.name == "outputs-finite")
        .map_or(0, |at| at + 1);
    let (before, after) = CHECKS.split_at(values);
    before
        .iter()
        .chain([&RECORD_NAMES])
        .chain(after)
        .chain(&conduct::ALL)
}

/// Checks the names under which a component records metrics.
fn record_names(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    let mut names = BTreeSet::new();
    for input in subject.ordinary() {
        let records = instance.step(&input)?.records;
        names.extend(records.numbers.into_iter().map(|(name, _)| name));
        names.extend(records.tokens.iter().flat_map(|(name, _)| of_tokens(name)));
    }
    // Metrics have the names that components have in reports.
    const ID: &str = "vendor.name";
    match names
        .iter()
        .find(|name| host_metrics::has(subject.point, &metric_name(subject.point, ID, name)))
    {
        Some(name) => failed(reserved(name)),
        None => success(format!("none of {} names is the host's", names.len())),
    }
}

/// Every check with its question.
pub fn all() -> Vec<(&'static str, &'static str)> {
    let mut all = vec![(
        ENTRY_POINT,
        "the library loads, has the entry point and speaks this ABI",
    )];
    all.extend(LIBRARY.iter().map(|(name, about, _)| (*name, *about)));
    all.extend(of_components().map(|check| (check.name, check.about)));
    all.push((
        FUZZ,
        "random inputs (`--fuzz N`): no panic, no broken rule, the same bits twice",
    ));
    all
}

/// Refuses names of checks that do not exist.
pub fn check_names(names: &[String]) -> Result<()> {
    let known: Vec<&str> = all().into_iter().map(|(name, _)| name).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let hint = capo_plugin::nearest(name, known.iter().copied()).map_or_else(
            || "`host check --list` shows all".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        bail!("there is no check `{name}` ({hint})");
    }
    Ok(())
}
