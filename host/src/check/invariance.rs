//! Checks of what an answer may depend on.

use capo_plugin::testing::Fixture;

use super::outcome::{Outcome, Verdict};
use super::subject::Subject;

/// Sums in another order differ by this much, relative to their size.
const ROUNDING: f32 = 1e-4;

/// The same input twice, to fresh instances.
pub fn deterministic(subject: &Subject<'_>) -> Verdict {
    let mut instances = [subject.create()?, subject.create()?];
    for step in 0..4 {
        let input = subject.stream(step);
        let [first, second] = &mut instances;
        if let Some(place) = first.step(&input)?.any_difference(&second.step(&input)?) {
            return Ok(Outcome::failed(format!(
                "two fresh instances differ on the same inputs, at step {step}: {place} (draw at random from `seed` and `step` alone)"
            )));
        }
    }
    Ok(Outcome::success("two fresh instances give the same bits"))
}

/// The same completions, their groups in another order.
pub fn permutation(subject: &Subject<'_>) -> Verdict {
    let (input, order) = (subject.three_groups(), [2, 0, 1]);
    let whole = subject.create()?.step(&input)?;
    let moved = subject.create()?.step(&input.regrouped(&order))?;
    // Back into the first order.
    let mut back = moved;
    for (_, values) in &mut back.outputs {
        let width = values.len() / order.len();
        let mut restored = values.clone();
        for (place, group) in order.iter().enumerate() {
            restored[group * width..(group + 1) * width].copy_from_slice(&values[place * width..(place + 1) * width]);
        }
        *values = restored;
    }
    Ok(match whole.difference(&back, ROUNDING) {
        Some(place) => {
            Outcome::warning(format!("with the groups in another order {place} (fine only where it draws at random)"))
        }
        None => Outcome::success("groups in another order give the same outputs in that order"),
    })
}

/// The same completions with other values in the padding.
pub fn padding_content(subject: &Subject<'_>) -> Verdict {
    let lengths = [6, 3, 1, 5, 2, 6, 4, 1];
    let batch = Fixture::new(8, 6).groups_of(4).lengths(&lengths);
    let plain = subject.create()?.step(&batch.clone().into())?;
    for salt in 0..3 {
        let filled = subject.create()?.step(&batch.clone().padding(salt).into())?;
        if let Some(place) = plain.difference(&filled, 0.0) {
            return Ok(Outcome::failed(format!(
                "with other values in the padding {place} (skip tokens whose `completion_mask` is 0)"
            )));
        }
        if let Some(record) = plain.record_difference(&filled) {
            return Ok(Outcome::warning(format!(
                "{record} depends on values in the padding (skip tokens whose `completion_mask` is 0)"
            )));
        }
    }
    Ok(Outcome::success("outputs and records do not depend on it"))
}
