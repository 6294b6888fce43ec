//! The checks by name.

use anyhow::{Result, bail};
use capo_plugin::Point;

use super::library::{self, Loaded};
use super::outcome::Verdict;
use super::subject::Subject;
use super::{batches, conduct, gradient, invariance, ranks, state, table};

/// The check that lists a library's components; all others need its answer.
pub const ENTRY_POINT: &str = "entry-point";
/// The check that decides whether a component can be built.
pub const CREATION: &str = "creation";
/// The check whose panics may have had no answer.
pub const PANICS_CONTAINED: &str = "panics-contained";
/// The check of what is written to standard output.
pub const STDOUT_QUIET: &str = "stdout-quiet";
/// The check with random batches, which runs with `--fuzz` alone.
pub const FUZZ: &str = "fuzz";

/// A check of a library.
pub struct LibraryCheck {
    /// Its name.
    pub name: &'static str,
    /// What it asks.
    pub about: &'static str,
    /// The check.
    pub run: fn(&Loaded) -> Verdict,
}

/// A check of a component.
pub struct ComponentCheck {
    /// Its name.
    pub name: &'static str,
    /// What it asks.
    pub about: &'static str,
    /// The points at which it makes sense.
    pub points: &'static [Point],
    /// Whether it runs although the component cannot be built.
    pub without_instance: bool,
    /// The check.
    pub run: fn(&Subject<'_>) -> Verdict,
}

const fn library(name: &'static str, about: &'static str, run: fn(&Loaded) -> Verdict) -> LibraryCheck {
    LibraryCheck { name, about, run }
}

const fn of_table(name: &'static str, about: &'static str, run: fn(&Subject<'_>) -> Verdict) -> ComponentCheck {
    ComponentCheck { name, about, points: &Point::ALL, without_instance: true, run }
}

const fn at(
    points: &'static [Point],
    name: &'static str,
    about: &'static str,
    run: fn(&Subject<'_>) -> Verdict,
) -> ComponentCheck {
    ComponentCheck { name, about, points, without_instance: false, run }
}

const fn component(name: &'static str, about: &'static str, run: fn(&Subject<'_>) -> Verdict) -> ComponentCheck {
    at(&Point::ALL, name, about, run)
}

const fn on_tokens(name: &'static str, about: &'static str, run: fn(&Subject<'_>) -> Verdict) -> ComponentCheck {
    const POINTS: [Point; 5] = [Point::Advantage, Point::Objective, Point::Mask, Point::Weight, Point::StepControl];
    at(&POINTS, name, about, run)
}

const fn on_text(name: &'static str, about: &'static str, run: fn(&Subject<'_>) -> Verdict) -> ComponentCheck {
    at(&[Point::Reward], name, about, run)
}

/// The checks of a library, in order.
pub const LIBRARY: [LibraryCheck; 5] = [
    library("load-time", "how much work loading is", library::load_time),
    library("panic-strategy", "panics unwind, so that they end no process", library::panic_strategy),
    library(
        "unknown-extensions",
        "extension ids that do not exist are answered with none",
        library::unknown_extensions,
    ),
    library("component-ids", "ids are `vendor.name` and unique, descriptions are one line", library::component_ids),
    library("recipes", "recipes are TOML and hold what a recipe may", library::recipes),
];

/// The checks of a component, in order.
pub const COMPONENT: [ComponentCheck; 32] = [
    of_table(CREATION, "it can be built from the table given", table::creation),
    of_table("empty-config", "an empty table gives a component or a sentence", table::empty_config),
    of_table("unknown-key", "an unknown key is refused", table::unknown_key),
    of_table(
        "key-docs",
        "the descriptions of its keys, if any, are of the keys that it reads, ranges of values that it takes",
        table::key_docs,
    ),
    of_table("wrong-type", "a value of the wrong type is refused, under each key", table::wrong_type),
    of_table("malformed-config", "text that is no table is refused", table::malformed_config),
    on_tokens("known-inputs", "it asks for nothing that this host does not know", batches::known_inputs),
    component("group-of-one", "G = 1", batches::group_of_one),
    on_tokens("one-token", "T = 1", batches::one_token),
    component("one-completion", "B = 1", batches::one_completion),
    on_tokens("rows-of-padding", "completions that are all padding", batches::rows_of_padding),
    on_text("empty-completion", "completions without a character", batches::empty_completion),
    on_text("odd-columns", "rows with any columns are taken, or refused with a sentence", batches::odd_columns),
    component("outputs-finite", "outputs and records are finite, outputs zero on padding", batches::outputs_finite),
    component("record-names", "no number of the host is recorded under its name", batches::record_names),
    at(
        &[Point::Objective],
        "gradients",
        "`dloss_dlogp` is the derivative of a completion's losses",
        gradient::gradients,
    ),
    at(
        &[Point::Weight],
        "weight-of-dropped",
        "tokens that a mask has dropped weigh nothing",
        batches::weight_of_dropped,
    ),
    at(&[Point::Mask], "mask-clears-only", "what another mask has cleared stays cleared", batches::mask_clears_only),
    component("deterministic", "two fresh instances give the same bits and states", invariance::deterministic),
    component("permutation", "groups in another order give the same outputs in that order", invariance::permutation),
    at(
        &[Point::Mask, Point::Weight],
        "token-wise",
        "where it says so, parts of a batch are decided as the whole is",
        invariance::token_wise,
    ),
    at(
        &[Point::Mask, Point::Weight],
        "sums-ranks",
        "where it says so, ranks with parts of a batch come to the state of the whole",
        ranks::sums_ranks,
    ),
    on_tokens("padding-content", "nothing depends on values in the padding", invariance::padding_content),
    component("save-load", "a state that is loaded in mid-stream goes on with the same bits", state::save_load),
    on_text("evaluation", "rollouts for evaluation change nothing", state::evaluation),
    component("foreign-state", "a state that it did not write is refused and changes nothing", state::foreign_state),
    component("state-growth", "the state does not grow with every step", state::state_growth),
    component("key-values", "other values of its keys are refused, or good for a step", table::key_values),
    component(PANICS_CONTAINED, "a panic stays in the library, as an error", conduct::panics_contained),
    component("threads", "no thread is left behind", conduct::threads),
    component(STDOUT_QUIET, "nothing is written to standard output", conduct::stdout_quiet),
    component("call-time", "how much work one step on a small batch is", conduct::call_time),
];

/// Every check with what it asks.
pub fn all() -> Vec<(&'static str, &'static str)> {
    let mut all = vec![(ENTRY_POINT, "the library loads, has the entry point and speaks this ABI")];
    all.extend(LIBRARY.iter().map(|check| (check.name, check.about)));
    all.extend(COMPONENT.iter().map(|check| (check.name, check.about)));
    all.push((FUZZ, "random inputs (`--fuzz N`): no panic, no broken rule, the same bits twice"));
    all
}

/// Refuses names that no check has.
///
/// # Errors
///
/// The first such name, with the nearest known one.
pub fn check_names(names: &[String]) -> Result<()> {
    let known: Vec<&str> = all().into_iter().map(|(name, _)| name).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let hint = capo_plugin::nearest(name, known.iter().copied())
            .map_or_else(|| "`host check --list` shows all".to_owned(), |near| format!("did you mean `{near}`?"));
        bail!("there is no check `{name}` ({hint})");
    }
    Ok(())
}
