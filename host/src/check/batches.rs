//! Checks of shapes and values.

use capo_plugin::Inputs;
use capo_plugin::testing::{Fixture, Records};

use super::instance::{Instance, Subject, stream};
use super::outcome::{Outcome, Verdict};

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

/// One step on the canonical batch `name`.
fn canonical(subject: &Subject<'_>, name: &str, what: &str) -> Verdict {
    let batch = Fixture::canonical().find(|(known, _)| *known == name).map(|(_, batch)| batch);
    let batch = batch.ok_or_else(|| format!("there is no batch `{name}`"))?;
    subject.create()?.step(&batch)?;
    Ok(Outcome::success(what))
}

/// G = 1.
pub fn group_of_one(subject: &Subject<'_>) -> Verdict {
    canonical(subject, "group-of-one", "it takes groups of one completion")
}

/// T = 1.
pub fn one_token(subject: &Subject<'_>) -> Verdict {
    canonical(subject, "one-token", "it takes completions of one token")
}

/// B = 1.
pub fn one_completion(subject: &Subject<'_>) -> Verdict {
    canonical(subject, "one-completion", "it takes a batch of one completion")
}

/// Completions without a token.
pub fn rows_of_padding(subject: &Subject<'_>) -> Verdict {
    canonical(subject, "rows-of-padding", "it takes completions that are all padding")
}

/// Outputs and records on ordinary batches.
pub fn outputs_finite(subject: &Subject<'_>) -> Verdict {
    let mut batches: Vec<Fixture> = Fixture::canonical().map(|(_, batch)| batch).collect();
    batches.extend((0..4).map(stream));
    for batch in &batches {
        // The handle refuses outputs that are not finite, or not zero on padding.
        let answer = subject.create()?.step(batch)?;
        if let Some(name) = infinite(&answer.records) {
            return Ok(Outcome::warning(format!("the record `{name}` is not finite (it becomes null in the metrics)")));
        }
    }
    Ok(Outcome::success(format!("all finite, and zero on padding, on {} batches", batches.len())))
}

fn infinite(records: &Records) -> Option<&str> {
    let numbers = records.numbers.iter().filter(|(_, value)| !value.is_finite()).map(|(name, _)| name);
    let tokens = records.tokens.iter().filter(|(_, values)| values.iter().any(|value| !value.is_finite()));
    numbers.chain(tokens.map(|(name, _)| name)).next().map(String::as_str)
}

/// A mask after another one that has dropped some tokens.
pub fn mask_clears_only(subject: &Subject<'_>) -> Verdict {
    for (_, batch) in Fixture::canonical() {
        let mut instance = subject.create()?;
        let Instance::Mask(mask) = &mut instance else { return Ok(Outcome::skipped("it is no mask")) };
        let batch = batch.batch();
        let mut keep = batch.completion_mask.to_vec();
        keep.iter_mut().step_by(2).for_each(|keep| *keep = 0);
        // The handle refuses a mask that sets what was cleared.
        mask.mask(&mut Records::default(), &batch, &mut keep)?;
        mask.step_end(&mut Records::default(), &batch, &keep, keep.contains(&1))?;
    }
    Ok(Outcome::success("what another mask has cleared stays cleared"))
}
