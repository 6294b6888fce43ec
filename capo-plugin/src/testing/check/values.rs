//! Checks of shapes, values and calls.

use super::outcome::{Verdict, failed, skipped, success, warning};
use super::subject::{Subject, is_panic, is_refusal};
use crate::testing::{Fixture, Input, Records, RolloutFixture, rollouts};
use crate::{Inputs, Point};

pub(super) fn known_inputs(subject: &Subject<'_>) -> Verdict {
    let instance = subject.create()?;
    let unknown = instance.inputs().0 & !Inputs::KNOWN.0;
    if unknown != 0 {
        return failed(format!(
            "it asks for inputs {unknown:#x}, which this host does not know"
        ));
    }
    instance.check_declared()?;
    success("this host has all that it asks for")
}

fn takes(subject: &Subject<'_>, input: &Input, what: &str) -> Verdict {
    subject.create()?.step(input)?;
    success(format!("it takes {what}"))
}

pub(super) fn group_of_one(subject: &Subject<'_>) -> Verdict {
    takes(
        subject,
        &subject.groups_of_one(),
        "groups of one completion",
    )
}

pub(super) fn one_token(subject: &Subject<'_>) -> Verdict {
    takes(
        subject,
        &Fixture::new(6, 1).groups_of(3).into(),
        "completions of one token",
    )
}

pub(super) fn one_completion(subject: &Subject<'_>) -> Verdict {
    takes(subject, &subject.one_completion(), "one completion alone")
}

pub(super) fn rows_of_padding(subject: &Subject<'_>) -> Verdict {
    takes(
        subject,
        &without_tokens(),
        "completions that are all padding",
    )
}

fn without_tokens() -> Input {
    Fixture::new(4, 5)
        .groups_of(2)
        .lengths(&[0, 5, 0, 2])
        .into()
}

pub(super) fn empty_completion(subject: &Subject<'_>) -> Verdict {
    let Input::Rollout(rollout) = subject.groups_of_one() else {
        return skipped("it sees no text");
    };
    takes(
        subject,
        &Input::Rollout(rollout.texts(&[""; 4])),
        "completions without a character",
    )
}

pub(super) fn outputs_finite(subject: &Subject<'_>) -> Verdict {
    let inputs = subject.ordinary();
    for input in &inputs {
        // The handle refuses outputs that are not finite, or not zero on padding.
        let answer = subject.create()?.step(input)?;
        if let Some(name) = infinite(&answer.records) {
            return warning(format!(
                "the record `{name}` is not finite (it becomes null in the metrics)"
            ));
        }
    }
    match subject.point {
        point if point.sees_text() => success(format!("all finite, on {} rollouts", inputs.len())),
        _ => success(format!(
            "all finite, and zero on padding, on {} batches",
            inputs.len()
        )),
    }
}

fn infinite(records: &Records) -> Option<&str> {
    let numbers = records
        .numbers
        .iter()
        .filter(|(_, value)| !value.is_finite())
        .map(|(name, _)| name);
    let tokens = records
        .tokens
        .iter()
        .filter(|(_, values)| values.iter().any(|value| !value.is_finite()));
    numbers
        .chain(tokens.map(|(name, _)| name))
        .next()
        .map(String::as_str)
}

/// Checks steps after a mask that dropped every other token. The handles refuse a mask that sets a
/// cleared entry, and a nonzero weight there.
pub(super) fn after_another(subject: &Subject<'_>) -> Verdict {
    for input in subject.ordinary().into_iter().chain([without_tokens()]) {
        let Input::Batch(mut batch) = input else {
            return skipped("it sees no tokens");
        };
        batch
            .token_mask
            .iter_mut()
            .step_by(2)
            .for_each(|keep| *keep = 0);
        subject.create()?.step(&Input::Batch(batch))?;
    }
    success(match subject.point {
        Point::Mask => "what another mask has cleared stays cleared",
        _ => "tokens that a mask has dropped weigh nothing",
    })
}

pub(super) fn odd_columns(subject: &Subject<'_>) -> Verdict {
    let columns = [
        "{}",
        r#"{"answer": null, "level": [], "tests": {"a": [null, {"b": 1e300}]}}"#,
        r#"{"answer": true, "level": -1.5, "tests": ["x", 1, null]}"#,
        r#"{"answer": "", "": "\u0000", "名": "\ud83e\udd80"}"#,
    ];
    let odd =
        columns.map(|columns| RolloutFixture::new(&["4", "1+3=4", ""]).columns(&[columns; 3]));
    let mut refused = 0;
    for rollout in rollouts()
        .into_iter()
        .map(|(_, rollout)| rollout)
        .chain(odd)
    {
        if let Err(error) = subject.create()?.step(&Input::Rollout(rollout)) {
            if !is_refusal(&error) || error.message().trim().is_empty() {
                return Err(error);
            }
            refused += 1;
        }
    }
    success(format!(
        "rows of any shape are taken, or refused with a sentence ({refused} were)"
    ))
}

/// Calls that no host makes: without completions, with columns that are not JSON, without tokens,
/// or without an input that the component asked for.
fn odd_calls(subject: &Subject<'_>, asked: Inputs) -> Vec<(String, Input)> {
    if subject.point.sees_text() {
        let garbled = RolloutFixture::new(&["4", "5"]).columns(&["{\"answer\": ", "no JSON"]);
        return vec![
            (
                "on a rollout without completions".into(),
                Input::Rollout(RolloutFixture::new(&[])),
            ),
            (
                "on columns that are no JSON".into(),
                Input::Rollout(garbled),
            ),
        ];
    }
    let mut calls = vec![(
        "on a batch without tokens".to_owned(),
        Fixture::new(2, 0).into(),
    )];
    for flag in (0..Inputs::KNOWN.0.count_ones())
        .map(|bit| Inputs(1 << bit))
        .filter(|flag| asked.contains(*flag))
    {
        if let Input::Batch(mut batch) = subject.stream(0) {
            batch.withheld = flag;
            calls.push((
                format!("without input {:#x}, which it asked for", flag.0),
                Input::Batch(batch),
            ));
        }
    }
    calls
}

pub(super) fn panics_contained(subject: &Subject<'_>) -> Verdict {
    for (what, input) in odd_calls(subject, subject.create()?.inputs()) {
        let mut instance = subject.create()?;
        let Some(panic) = instance.step(&input).err().filter(is_panic) else {
            continue;
        };
        if instance.step(&subject.stream(0)).is_ok() {
            return failed(format!(
                "after a panic {what} the instance goes on as if nothing had happened"
            ));
        }
        return warning(format!("{what}: {panic} (contained; return an error)"));
    }
    // The component's last call is its drop, where a panic cannot be reported. `host check` runs
    // the check in a separate process and notices it.
    success("calls that no host makes do not make it panic")
}

/// Gives the random input of `seed` to two fresh instances, twice to each, so that the second call
/// meets state of the first. Returns true if the input was accepted, false if it was refused with a
/// message.
///
/// # Errors
///
/// A message about the fault, prefixed with the input's shape.
pub fn take_random(subject: &Subject<'_>, seed: u64) -> Result<bool, String> {
    let input = subject.random(seed);
    let life = || {
        let mut instance = subject.create()?;
        Ok([instance.step(&input)?, instance.step(&input)?])
    };
    let sentence = match (life(), life()) {
        (Ok(first), Ok(second)) => match first
            .iter()
            .zip(&second)
            .find_map(|(one, two)| one.any_difference(two))
        {
            None => return Ok(true),
            Some(place) => format!("two fresh instances differ: {place}"),
        },
        (Err(first), Err(second)) if first == second && is_refusal(&first) => return Ok(false),
        (Err(error), _) | (_, Err(error)) => error.to_string(),
    };
    Err(format!("{}: {}", input.shape(), subject.unnamed(&sentence)))
}
