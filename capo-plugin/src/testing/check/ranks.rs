//! The check of a component on several ranks.

use std::ops::Range;

use super::invariance::{ROUNDING, decide, end};
use super::outcome::{Verdict, failed, skipped, success};
use super::subject::Subject;
use crate::testing::observed::counts;
use crate::testing::{Fixture, Input, Seat, on_ranks};
use crate::{MaskTraits, PluginError, Ranks};

const ROWS: [Range<usize>; 3] = [0..1, 1..5, 5..9];

/// Checks a component that declares `SUMS_RANKS`. Ranks end their steps with their own completions, and must reach
/// the state of an instance that sees all completions.
pub(super) fn sums_ranks(subject: &Subject<'_>) -> Verdict {
    if !subject.traits()?.contains(MaskTraits::SUMS_RANKS) {
        return success("it does not say that ranks come to one state");
    }
    let mut whole = subject.create()?;
    let mut steps = Vec::new();
    for step in 0..4 {
        let Input::Batch(batch) = subject.three_groups(step) else { return skipped("it sees no tokens") };
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
    let far =
        |at: &usize| (ours[*at] - theirs[*at]).abs() > f64::from(ROUNDING) * ours[*at].abs().max(theirs[*at].abs());
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

fn rank(subject: &Subject<'_>, seat: &Seat<'_>, steps: &[(Box<Fixture>, Vec<f64>)]) -> Result<Told, PluginError> {
    let (mut instance, rows) = (subject.create()?, ROWS[seat.rank()].clone());
    let mut states = Vec::new();
    for (batch, decided) in steps {
        let (part, own) = (batch.part(rows.clone()), &decided[6 * rows.start..6 * rows.end]);
        part.on(seat, |sink| instance.end(sink, &part, own, counts(decided)))?;
        states.push(instance.save()?);
    }
    Ok((states, decide(&mut instance, &steps[0].0)?))
}

/// Results of all ranks, or the first error that another rank's error did not cause. A rank that gave up because
/// another rank stopped comes last.
fn first_cause(told: Vec<Result<Told, PluginError>>) -> Result<Vec<Told>, PluginError> {
    let follows = |error: &PluginError| error.message().contains("waits for a rank that does not call it");
    let mut errors: Vec<PluginError> = told.iter().filter_map(|one| one.as_ref().err().cloned()).collect();
    errors.sort_by_key(follows);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => told.into_iter().collect(),
    }
}
