//! The check of what a component does on several ranks.

use std::ops::Range;

use capo_plugin::testing::{Fixture, Seat, on_ranks};
use capo_plugin::{MaskTraits, PluginError, Ranks};

use super::input::Input;
use super::invariance::{ROUNDING, decide, end};
use super::outcome::{Outcome, Verdict};
use super::subject::Subject;

/// The completions of each rank.
const ROWS: [Range<usize>; 3] = [0..1, 1..5, 5..9];

/// Ranks that end their steps with their own completions, beside an instance that sees all, where the component says that they come to the
/// same state.
pub fn sums_ranks(subject: &Subject<'_>) -> Verdict {
    if !subject.traits()?.contains(MaskTraits::SUMS_RANKS) {
        return Ok(Outcome::success("it does not say that ranks come to one state"));
    }
    let mut whole = subject.create()?;
    let mut steps = Vec::new();
    for step in 0..4 {
        let Input::Batch(batch) = subject.three_groups(step) else { return Ok(Outcome::skipped("it sees no tokens")) };
        let decided = decide(&mut whole, &batch)?;
        end(&mut whole, &batch, &decided)?;
        steps.push((batch, decided));
    }
    let told = on_ranks(ROWS.len(), |seat| rank(subject, seat, &steps));
    let told = first_cause(told)?;
    for step in 0..steps.len() {
        let state = |rank: usize| &told[rank].0[step];
        if let Some(rank) = (1..ROWS.len()).find(|&rank| state(rank) != state(0)) {
            return Ok(Outcome::failed(format!(
                "ranks 0 and {rank} save different states after step {step} (declare `SUMS_RANKS` only where `step_end` brings them together)"
            )));
        }
    }
    let (ours, theirs) = (decide(&mut whole, &steps[0].0)?, &told[0].1);
    let far = |at: &usize| (ours[*at] - theirs[*at]).abs() > ROUNDING * ours[*at].abs().max(theirs[*at].abs());
    Ok(match (0..ours.len()).find(far) {
        None => Outcome::success("ranks with parts of a batch come to the state of the whole"),
        Some(at) => Outcome::failed(format!(
            "after {} steps on ranks it gives {} to completion {}, token {}, and {} after the same on whole batches (a sum over ranks is of what the whole batch would add up)",
            steps.len(),
            theirs[at],
            at / 6,
            at % 6,
            ours[at]
        )),
    })
}

/// Its state after each step, and what it decides then of the first batch.
type Told = (Vec<Vec<u8>>, Vec<f32>);

/// One rank's steps.
fn rank(subject: &Subject<'_>, seat: &Seat<'_>, steps: &[(Box<Fixture>, Vec<f32>)]) -> Result<Told, PluginError> {
    let (mut instance, rows) = (subject.create()?, ROWS[seat.rank()].clone());
    let mut states = Vec::new();
    for (batch, decided) in steps {
        let taken = decided.iter().any(|&value| value > 0.0);
        instance.end_on(seat, &batch.part(rows.clone()), &decided[6 * rows.start..6 * rows.end], taken)?;
        states.push(instance.save()?);
    }
    Ok((states, decide(&mut instance, &steps[0].0)?))
}

/// What all ranks told, or the error of the first that has one of its own: that others gave up follows from it.
fn first_cause(told: Vec<Result<Told, PluginError>>) -> Result<Vec<Told>, PluginError> {
    let follows = |error: &PluginError| error.message().contains("waits for a rank that does not call it");
    let mut errors: Vec<PluginError> = told.iter().filter_map(|one| one.as_ref().err().cloned()).collect();
    errors.sort_by_key(follows);
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => told.into_iter().collect(),
    }
}
