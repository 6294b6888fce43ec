//! Checks of shapes and values.

use std::collections::BTreeSet;

use capo_plugin::testing::{Fixture, Listener, Records, RolloutFixture, rollouts};
use capo_plugin::{Inputs, Point};

use super::input::Input;
use super::instance::{Instance, is_refusal};
use super::outcome::{Outcome, Verdict};
use super::subject::Subject;
use crate::metrics::names;

/// What it asks for.
pub fn known_inputs(subject: &Subject<'_>) -> Verdict {
    let instance = subject.create()?;
    let unknown = instance.inputs().0 & !Inputs::KNOWN.0;
    if unknown != 0 {
        return Ok(Outcome::failed(format!("it asks for inputs {unknown:#x}, which this host does not know")));
    }
    if let Err(error) = instance.check_reduction() {
        return Ok(Outcome::failed(error.to_string()));
    }
    Ok(Outcome::success("this host has all that it asks for"))
}

/// One step on `input`.
fn takes(subject: &Subject<'_>, input: &Input, what: &str) -> Verdict {
    subject.create()?.step(input)?;
    Ok(Outcome::success(format!("it takes {what}")))
}

/// G = 1.
pub fn group_of_one(subject: &Subject<'_>) -> Verdict {
    takes(subject, &subject.groups_of_one(), "groups of one completion")
}

/// T = 1.
pub fn one_token(subject: &Subject<'_>) -> Verdict {
    takes(subject, &Fixture::new(6, 1).groups_of(3).into(), "completions of one token")
}

/// B = 1.
pub fn one_completion(subject: &Subject<'_>) -> Verdict {
    takes(subject, &subject.one_completion(), "one completion alone")
}

/// Completions without a token.
pub fn rows_of_padding(subject: &Subject<'_>) -> Verdict {
    takes(subject, &without_tokens(), "completions that are all padding")
}

fn without_tokens() -> Input {
    Fixture::new(4, 5).groups_of(2).lengths(&[0, 5, 0, 2]).into()
}

/// Outputs and records on ordinary inputs.
pub fn outputs_finite(subject: &Subject<'_>) -> Verdict {
    let inputs = subject.ordinary();
    for input in &inputs {
        // The handle refuses outputs that are not finite, or not zero on padding.
        let answer = subject.create()?.step(input)?;
        if let Some(name) = infinite(&answer.records) {
            return Ok(Outcome::warning(format!("the record `{name}` is not finite (it becomes null in the metrics)")));
        }
    }
    let (what, count) = match subject.point {
        Point::Reward => ("all finite, on", format!("{} rollouts", inputs.len())),
        _ => ("all finite, and zero on padding, on", format!("{} batches", inputs.len())),
    };
    Ok(Outcome::success(format!("{what} {count}")))
}

fn infinite(records: &Records) -> Option<&str> {
    let numbers = records.numbers.iter().filter(|(_, value)| !value.is_finite()).map(|(name, _)| name);
    let tokens = records.tokens.iter().filter(|(_, values)| values.iter().any(|value| !value.is_finite()));
    numbers.chain(tokens.map(|(name, _)| name)).next().map(String::as_str)
}

/// The names that it records under.
pub fn record_names(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    let mut names = BTreeSet::new();
    for input in subject.ordinary() {
        let records = instance.step(&input)?.records;
        names.extend(records.numbers.into_iter().map(|(name, _)| name));
        names.extend(records.tokens.iter().flat_map(|(name, _)| names::of_tokens(name)));
    }
    Ok(match names.iter().find(|name| names::is_reserved(subject.point, name)) {
        Some(name) => Outcome::failed(names::reserved(name)),
        None => Outcome::success(format!("none of {} names is the host's", names.len())),
    })
}

/// A mask after another one that has dropped some tokens.
pub fn mask_clears_only(subject: &Subject<'_>) -> Verdict {
    for input in subject.ordinary().into_iter().chain([without_tokens()]) {
        let Input::Batch(batch) = input else { continue };
        let mut instance = subject.create()?;
        let Instance::Mask(mask) = &mut instance else { return Ok(Outcome::skipped("it is no mask")) };
        let context = batch.context();
        let (batch, mut listener) = (batch.batch(), Listener::new(&context));
        let mut keep = batch.completion_mask.to_vec();
        keep.iter_mut().step_by(2).for_each(|keep| *keep = 0);
        // The handle refuses a mask that sets what was cleared.
        mask.mask(&mut listener, &batch, &mut keep)?;
        mask.step_end(&mut listener, &batch, &keep, keep.contains(&1))?;
    }
    Ok(Outcome::success("what another mask has cleared stays cleared"))
}

/// A weight after a mask that has dropped some tokens.
pub fn weight_of_dropped(subject: &Subject<'_>) -> Verdict {
    for input in subject.ordinary().into_iter().chain([without_tokens()]) {
        let Input::Batch(batch) = input else { continue };
        let mut instance = subject.create()?;
        let Instance::Weight(weight) = &mut instance else { return Ok(Outcome::skipped("it is no weight")) };
        let context = batch.context();
        let (batch, mut listener) = (batch.batch(), Listener::new(&context));
        let mut keep = batch.completion_mask.to_vec();
        keep.iter_mut().step_by(2).for_each(|keep| *keep = 0);
        let mut weights = vec![0.0; keep.len()];
        // The handle refuses a weight that is not 0 where a token was dropped.
        weight.weigh(&mut listener, &batch, &keep, &mut weights)?;
        weight.step_end(&mut listener, &batch, &weights, keep.contains(&1))?;
    }
    Ok(Outcome::success("tokens that a mask has dropped weigh nothing"))
}

/// Completions without a character.
pub fn empty_completion(subject: &Subject<'_>) -> Verdict {
    let Input::Rollout(rollout) = subject.groups_of_one() else { return Ok(Outcome::skipped("it is no reward")) };
    takes(subject, &Input::Rollout(rollout.texts(&[""; 4])), "completions without a character")
}

/// Rows of all kinds, which a reward may refuse with a sentence.
pub fn odd_columns(subject: &Subject<'_>) -> Verdict {
    let columns = [
        "{}",
        r#"{"answer": null, "level": [], "tests": {"a": [null, {"b": 1e300}]}}"#,
        r#"{"answer": true, "level": -1.5, "tests": ["x", 1, null]}"#,
        r#"{"answer": "", "": "\u0000", "名": "\ud83e\udd80"}"#,
    ];
    let odd = columns.map(|columns| RolloutFixture::new(&["4", "1+3=4", ""]).columns(&[columns; 3]));
    let (all, mut refused) = (rollouts().into_iter().map(|(_, rollout)| rollout).chain(odd), 0);
    for rollout in all {
        if let Err(error) = subject.create()?.step(&Input::Rollout(rollout)) {
            if !is_refusal(&error) || error.message().trim().is_empty() {
                return Err(error);
            }
            refused += 1;
        }
    }
    Ok(Outcome::success(format!("rows of any shape are taken, or refused with a sentence ({refused} were)")))
}
