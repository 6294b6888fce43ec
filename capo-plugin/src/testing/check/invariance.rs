//! Checks that an answer depends only on its proper inputs, also on several ranks.

use std::ops::Range;

use super::outcome::{Verdict, failed, skipped, success, warning};
use super::subject::{Live, Subject};
use crate::testing::observed::counts;
use crate::testing::{Answer, Fixture, Input, Records, ThreadRank, on_ranks};
use crate::{PluginError, Ranks, Traits};

/// Allowed relative difference between sums in different orders.
const ROUNDING: f32 = 1e-4;

pub(super) fn deterministic(subject: &Subject<'_>) -> Verdict {
    const ADVICE: &str = "draw at random from `seed` and `step` alone";
    let [mut first, mut second] = [subject.create()?, subject.create()?];
    for step in 0..4 {
        let input = subject.stream(step);
        if let Some(place) = first.step(&input)?.any_difference(&second.step(&input)?) {
            return failed(format!(
                "two fresh instances differ on the same inputs, at step {step}: {place} ({ADVICE})"
            ));
        }
        if first.save()? != second.save()? {
            return failed(format!(
                "two fresh instances save different states after the same inputs, at step {step} (write what is kept in a fixed order)"
            ));
        }
    }
    success("two fresh instances give the same bits and states")
}

pub(super) fn permutation(subject: &Subject<'_>) -> Verdict {
    let [mut plain, mut moved] = [subject.create()?, subject.create()?];
    for (step, order) in (0..).zip([[2, 0, 1], [1, 2, 0], [0, 2, 1]]) {
        let input = subject.three_groups(step);
        let whole = plain.step(&input)?;
        let back = restored(moved.step(&input.regrouped(&order))?, &order);
        if let Some(place) = whole.difference(&back, ROUNDING) {
            return warning(format!(
                "with the groups in another order, at step {step}, {place} (fine only where it draws at random)"
            ));
        }
    }
    success("groups in another order give the same outputs in that order")
}

/// The answer with its groups back in their first order; `order` is the permutation that was
/// applied.
fn restored(mut answer: Answer, order: &[usize]) -> Answer {
    for (_, values) in &mut answer.outputs {
        let width = values.len() / order.len();
        let moved = values.clone();
        for (place, group) in order.iter().enumerate() {
            values[group * width..(group + 1) * width]
                .copy_from_slice(&moved[place * width..(place + 1) * width]);
        }
    }
    answer
}

/// Checks a component that declares `TOKEN_WISE`: a batch in parts must give the same decisions as
/// the whole batch, step by step.
pub(super) fn token_wise(subject: &Subject<'_>) -> Verdict {
    if !subject.traits()?.contains(Traits::TOKEN_WISE) {
        return success("it does not say that it decides token by token");
    }
    let [mut whole, mut split] = [subject.create()?, subject.create()?];
    for (step, size) in (0..).zip([5, 1, 2, 3, 8]) {
        let Input::Batch(batch) = subject.three_groups(step) else {
            return skipped("it sees no tokens");
        };
        let (ours, theirs) = (
            decide(&mut whole, &batch)?,
            decide_parts(&mut split, &batch, size)?,
        );
        if let Some(at) = (0..ours.len()).find(|&at| ours[at].to_bits() != theirs[at].to_bits()) {
            return failed(format!(
                "it gives {} to completion {}, token {} of a whole batch, and {} where it sees a part, at step {step} (declare `TOKEN_WISE` only where each token is decided by itself)",
                ours[at] as f32,
                at / 6,
                at % 6,
                theirs[at] as f32
            ));
        }
        end(&mut whole, &batch, &ours)?;
        end(&mut split, &batch, &ours)?;
        if whole.save()? != split.save()? {
            return failed(format!(
                "it saves another state where it saw the batch in parts, at step {step} (change state in `step_end` alone)"
            ));
        }
    }
    success("parts of a batch are decided as the whole is")
}

/// Decisions on all of `batch` at once.
fn decide(instance: &mut Live, batch: &Fixture) -> Result<Vec<f64>, PluginError> {
    Ok(instance.run(&mut Records::default(), batch)?.remove(0).1)
}

/// Decisions on parts of `size` completions each, concatenated.
fn decide_parts(
    instance: &mut Live,
    batch: &Fixture,
    size: usize,
) -> Result<Vec<f64>, PluginError> {
    let completions = batch.dims.completions as usize;
    let starts = (0..completions).step_by(size);
    let parts = starts.map(|start| {
        decide(
            instance,
            &batch.part(start..(start + size).min(completions)),
        )
    });
    Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
}

fn end(instance: &mut Live, batch: &Fixture, decided: &[f64]) -> Result<(), PluginError> {
    instance.end(&mut Records::default(), batch, decided, counts(decided))
}

pub(super) fn padding_content(subject: &Subject<'_>) -> Verdict {
    let lengths = [6, 3, 1, 5, 2, 6, 4, 1];
    let batch = Fixture::new(8, 6).groups_of(4).lengths(&lengths);
    let plain = subject.create()?.step(&batch.clone().into())?;
    for salt in 0..3 {
        let filled = subject
            .create()?
            .step(&batch.clone().padding(salt).into())?;
        if let Some(place) = plain.difference(&filled, 0.0) {
            return failed(format!(
                "with other values in the padding {place} (skip tokens whose `completion_mask` is 0)"
            ));
        }
        if let Some(record) = plain.record_difference(&filled) {
            return warning(format!(
                "{record} depends on values in the padding (skip tokens whose `completion_mask` is 0)"
            ));
        }
    }
    success("outputs and records do not depend on it")
}

/// Completions of each rank.
const ROWS: [Range<usize>; 3] = [0..1, 1..5, 5..9];

/// Checks a component that declares `SUMS_RANKS`. Ranks end their steps with their own completions,
/// and must reach the state of an instance that sees all completions.
pub(super) fn sums_ranks(subject: &Subject<'_>) -> Verdict {
    if !subject.traits()?.contains(Traits::SUMS_RANKS) {
        return success("it does not say that ranks come to one state");
    }
    let mut whole = subject.create()?;
    let mut steps = Vec::new();
    for step in 0..4 {
        let Input::Batch(batch) = subject.three_groups(step) else {
            return skipped("it sees no tokens");
        };
        let decided = decide(&mut whole, &batch)?;
        end(&mut whole, &batch, &decided)?;
        steps.push((batch, decided));
    }
    let told = on_ranks(ROWS.len(), |seat| rank(subject, seat, &steps));
    let told = first_cause(told)?;
    for step in 0..steps.len() {
        let state = |rank: usize| &told[rank].0[step];
        if let Some(rank) = (1..ROWS.len()).find(|&rank| state(rank) != state(0)) {
            return failed(format!(
                "ranks 0 and {rank} save different states after step {step} (declare `SUMS_RANKS` only where `step_end` brings them together)"
            ));
        }
    }
    let (ours, theirs) = (decide(&mut whole, &steps[0].0)?, &told[0].1);
    let far = |at: &usize| {
        (ours[*at] - theirs[*at]).abs()
            > f64::from(ROUNDING) * ours[*at].abs().max(theirs[*at].abs())
    };
    match (0..ours.len()).find(far) {
        None => success("ranks with parts of a batch come to the state of the whole"),
        Some(at) => failed(format!(
            "after {} steps on ranks it gives {} to completion {}, token {}, and {} after the same on whole batches (a sum over ranks is of what the whole batch would add up)",
            steps.len(),
            theirs[at] as f32,
            at / 6,
            at % 6,
            ours[at] as f32
        )),
    }
}

/// A rank's state after each step, and its later decisions on the first batch.
type Told = (Vec<Vec<u8>>, Vec<f64>);

fn rank(
    subject: &Subject<'_>,
    seat: &ThreadRank<'_>,
    steps: &[(Box<Fixture>, Vec<f64>)],
) -> Result<Told, PluginError> {
    let (mut instance, rows) = (subject.create()?, ROWS[seat.rank()].clone());
    let mut states = Vec::new();
    for (batch, decided) in steps {
        let (part, own) = (
            batch.part(rows.clone()),
            &decided[6 * rows.start..6 * rows.end],
        );
        part.on(seat, |sink| instance.end(sink, &part, own, counts(decided)))?;
        states.push(instance.save()?);
    }
    Ok((states, decide(&mut instance, &steps[0].0)?))
}

/// Results of all ranks, or the first error that another rank's error did not cause. A rank that
/// gave up because another rank stopped comes last.
fn first_cause(told: Vec<Result<Told, PluginError>>) -> Result<Vec<Told>, PluginError> {
    let follows = |error: &PluginError| {
        error
            .message()
            .contains("waits for a rank that does not call it")
    };
    let mut errors: Vec<PluginError> = told
        .iter()
        .filter_map(|one| one.as_ref().err().cloned())
        .collect();
    errors.sort_by_key(follows);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => told.into_iter().collect(),
    }
}
