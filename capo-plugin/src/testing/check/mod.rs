//! The checks of a component: their demands, their inputs, and their tolerances.
//!
//! [`CHECKS`] lists all checks, and the sibling files hold them by theme. [`conform`] runs them in
//! a test of the component's author. `host check` runs them in other processes, and has further
//! checks of the library.

mod gradient;
mod invariance;
mod outcome;
mod state;
mod subject;
mod table;
mod values;

pub use outcome::{Outcome, Status, Verdict, failed, skipped, success, warning};
pub use subject::{Live, Subject};
pub use values::take_random;

pub use super::rollout::Row;

use super::object;
use crate::{Image, Point};

/// A check of a component.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// The demand on the component, as shown to the user.
    pub about: &'static str,
    /// The points to which the check applies.
    pub points: &'static [Point],
    /// True if the check runs even when the component cannot be built.
    pub without_instance: bool,
    /// Function that runs the check.
    pub run: fn(&Subject<'_>) -> Verdict,
}

/// The points that see tokens.
const ON_TOKENS: &[Point] = &[
    Point::Advantage,
    Point::Objective,
    Point::Mask,
    Point::Weight,
    Point::StepControl,
];
/// The points that see texts.
const ON_TEXT: &[Point] = &[Point::Environment, Point::Reward];
/// The points that decide about tokens before the backward pass.
const DECIDING: &[Point] = &[Point::Mask, Point::Weight];

/// Name of the check that decides whether a component can be built.
pub const CREATION: &str = "creation";
/// Name of the check whose panics the process may not survive.
pub const PANICS_CONTAINED: &str = "panics-contained";

/// All checks, in the order in which they run.
pub static CHECKS: [Check; 28] = [
    of_table(
        CREATION,
        "it can be built from the table given",
        table::creation,
    ),
    of_table(
        "empty-config",
        "an empty table gives a component or a sentence",
        table::empty_config,
    ),
    of_table(
        "unknown-key",
        "an unknown key is refused",
        table::unknown_key,
    ),
    of_table(
        "key-docs",
        "it takes the default of each key, and both ends of each range for a search",
        table::key_docs,
    ),
    of_table(
        "wrong-type",
        "a value of the wrong type is refused, under each key",
        table::wrong_type,
    ),
    of_table(
        "malformed-config",
        "text that is no table is refused",
        table::malformed_config,
    ),
    on_tokens(
        "known-inputs",
        "it asks for nothing that this host does not know",
        values::known_inputs,
    ),
    Check::new("group-of-one", "G = 1", values::group_of_one),
    on_tokens("one-token", "T = 1", values::one_token),
    Check::new("one-completion", "B = 1", values::one_completion),
    on_tokens(
        "rows-of-padding",
        "completions that are all padding",
        values::rows_of_padding,
    ),
    on_text(
        "empty-completion",
        "completions without a character",
        values::empty_completion,
    ),
    on_text(
        "odd-columns",
        "rows with any columns are taken, or refused with a sentence",
        values::odd_columns,
    ),
    Check::new(
        "outputs-finite",
        "outputs and records are finite, outputs zero on padding",
        values::outputs_finite,
    ),
    Check::new(
        "gradients",
        "`dloss_dlogp` is the derivative of a completion's losses",
        gradient::gradients,
    )
    .at(&[Point::Objective]),
    Check::new(
        "weight-of-dropped",
        "tokens that a mask has dropped weigh nothing",
        values::after_another,
    )
    .at(&[Point::Weight]),
    Check::new(
        "mask-clears-only",
        "what another mask has cleared stays cleared",
        values::after_another,
    )
    .at(&[Point::Mask]),
    Check::new(
        "deterministic",
        "two fresh instances give the same bits and states",
        invariance::deterministic,
    ),
    Check::new(
        "permutation",
        "groups in another order give the same outputs in that order",
        invariance::permutation,
    ),
    Check::new(
        "token-wise",
        "where it says so, parts of a batch are decided as the whole is",
        invariance::token_wise,
    )
    .at(DECIDING),
    Check::new(
        "sums-ranks",
        "where it says so, ranks with parts of a batch come to the state of the whole",
        invariance::sums_ranks,
    )
    .at(DECIDING),
    on_tokens(
        "padding-content",
        "nothing depends on values in the padding",
        invariance::padding_content,
    ),
    Check::new(
        "save-load",
        "a state that is loaded in mid-stream goes on with the same bits",
        state::save_load,
    ),
    on_text(
        "evaluation",
        "rollouts for evaluation change nothing",
        state::evaluation,
    ),
    Check::new(
        "foreign-state",
        "a state that it did not write is refused and changes nothing",
        state::foreign_state,
    ),
    Check::new(
        "state-growth",
        "the state does not grow with every step",
        state::state_growth,
    ),
    Check::new(
        "key-values",
        "other values of its keys are refused, or good for a step",
        table::key_values,
    ),
    Check::new(
        PANICS_CONTAINED,
        "a panic stays in the library, as an error",
        values::panics_contained,
    ),
];

type Run = fn(&Subject<'_>) -> Verdict;

const fn of_table(name: &'static str, about: &'static str, run: Run) -> Check {
    Check {
        without_instance: true,
        ..Check::new(name, about, run)
    }
}

const fn on_tokens(name: &'static str, about: &'static str, run: Run) -> Check {
    Check::new(name, about, run).at(ON_TOKENS)
}

const fn on_text(name: &'static str, about: &'static str, run: Run) -> Check {
    Check::new(name, about, run).at(ON_TEXT)
}

impl Check {
    /// A check at all points, for a component that can be built.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&Subject<'_>) -> Verdict,
    ) -> Self {
        Self {
            name,
            about,
            points: &Point::ALL,
            without_instance: false,
            run,
        }
    }

    const fn at(self, points: &'static [Point]) -> Self {
        Self { points, ..self }
    }

    /// Outcome of the check for `subject`, with a message that omits the component's name.
    pub fn outcome(&self, subject: &Subject<'_>) -> Outcome {
        let cannot_run = if self.without_instance {
            None
        } else {
            subject.cannot_run()
        };
        let outcome = match cannot_run {
            Some(sentence) => Outcome::unchecked(sentence),
            None => (self.run)(subject)
                .unwrap_or_else(|error| Outcome::new(Status::Failed, error.message())),
        };
        Outcome {
            sentence: subject.unnamed(&outcome.sentence),
            ..outcome
        }
    }
}

/// Runs all [`CHECKS`] on every component of this image: one test for all components of a plugin.
///
/// A component with required keys gets them through its id, as `key = value` lines. A warning
/// counts as a pass. The messages are those of `host check`, which has further checks.
///
/// ```
/// # use capo_plugin::testing;
/// testing::conform(&[("acme.surprise-cap", "max_nats = 5.0")]).unwrap();
/// ```
///
/// # Errors
///
/// One line for each check that fails, and for each check that could not run without required keys.
pub fn conform(tables: &[(&str, &str)]) -> Result<(), String> {
    let (image, mut wrong) = (Image::own(), Vec::new());
    for point in Point::ALL {
        for component in image.components(point)? {
            let id = component.id.as_str();
            let lines = tables
                .iter()
                .find(|(of, _)| *of == id)
                .map_or("", |(_, lines)| *lines);
            let table = object(lines).map_err(|error| error.to_string())?;
            let names = component.keys.iter().map(|key| key.name.to_string());
            let keys: Vec<String> = names.collect();
            let subject = Subject {
                image: &image,
                point,
                id,
                keys: &keys,
                table: &table,
                rows: None,
            };
            for check in CHECKS.iter().filter(|check| check.points.contains(&point)) {
                let outcome = check.outcome(&subject);
                if outcome.is_bad() {
                    wrong.push(format!(
                        "{} `{id}`: {}: {}",
                        point.name(),
                        check.name,
                        outcome.sentence
                    ));
                }
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}
