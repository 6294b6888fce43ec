//! Checks of saved state.

use std::time::{Duration, Instant};

use super::outcome::{Verdict, failed, skipped, success, warning};
use super::subject::{Live, Subject, is_panic};
use crate::PluginError;

/// Time after which a stream of steps is cut short.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn save_load(subject: &Subject<'_>) -> Verdict {
    let mut first = subject.create()?;
    for step in 0..3 {
        first.step(&subject.stream(step))?;
    }
    let state = first.save()?;
    if first.save()? != state {
        return failed("two saves in a row differ");
    }
    let mut second = subject.create()?;
    second.load(&state)?;
    if second.save()? != state {
        return failed("a state that was loaded and saved again is another state");
    }
    for step in 3..6 {
        let input = subject.stream(step);
        if let Some(place) = first.step(&input)?.any_difference(&second.step(&input)?) {
            return failed(format!(
                "after a load in mid-stream step {step} differs: {place} (save all that later steps depend on)"
            ));
        }
    }
    if first.save()? != second.save()? {
        return failed("after a load in mid-stream the state at the end differs");
    }
    success(format!(
        "a resumed instance goes on with the same bits ({} bytes of state)",
        state.len()
    ))
}

pub(super) fn evaluation(subject: &Subject<'_>) -> Verdict {
    const ADVICE: &str = "change state where `rollout.purpose` is `Purpose::TRAINING` alone";
    let (mut measured, mut plain) = (subject.create()?, subject.create()?);
    for step in 0..4 {
        let input = subject.stream(step);
        if let Some(place) = measured.step(&input)?.any_difference(&plain.step(&input)?) {
            return failed(format!(
                "after a rollout for evaluation step {step} differs: {place} ({ADVICE})"
            ));
        }
        let before = measured.save()?;
        measured.step(&subject.held_out(step))?;
        if measured.save()? != before {
            return failed(format!(
                "a rollout for evaluation changes its state ({ADVICE})"
            ));
        }
    }
    success("rollouts for evaluation change nothing")
}

pub(super) fn foreign_state(subject: &Subject<'_>) -> Verdict {
    let mut taken = None;
    let (own, fresh) = (own_state(subject)?, subject.create()?.save()?);
    for foreign in foreign_states(&own)
        .into_iter()
        .filter(|foreign| *foreign != fresh)
    {
        let mut instance = subject.create()?;
        instance.step(&subject.stream(0))?;
        let before = instance.save()?;
        let length = foreign.len();
        match instance.load(&foreign) {
            Ok(()) => taken = Some(length),
            Err(error) if is_panic(&error) => {
                return failed(format!(
                    "on {length} foreign bytes {error} (return an error)"
                ));
            }
            Err(_) if instance.save()? != before => {
                return failed(format!(
                    "{length} foreign bytes are refused, but its state has changed"
                ));
            }
            Err(_) => {}
        }
    }
    for (what, json) in subject.guesses() {
        if let Some(error) = panic_on(&own, subject, &json) {
            return failed(format!(
                "on the state that it saved without {what} {error} (return an error)"
            ));
        }
    }
    match taken {
        Some(length) => warning(format!(
            "{length} foreign bytes are taken for its state (write what tells them apart)"
        )),
        None => success("foreign bytes are refused, and change nothing"),
    }
}

fn own_state(subject: &Subject<'_>) -> Result<Vec<u8>, PluginError> {
    let mut instance = subject.create()?;
    for step in 0..2 {
        instance.step(&subject.stream(step))?;
    }
    instance.save()
}

/// Bytes that are not a state of this component, or its state cut short or with extra bytes.
fn foreign_states(own: &[u8]) -> Vec<Vec<u8>> {
    let mut states = vec![
        vec![0],
        vec![0xff; 64],
        b"another component's state".to_vec(),
        (0..=255).collect(),
    ];
    if !own.is_empty() {
        states.extend([
            Vec::new(),
            own[..own.len() / 2].to_vec(),
            [own, &[0; 7]].concat(),
        ]);
    }
    states.retain(|state| *state != own);
    states
}

/// The panic of an instance built from `json` when it loads `state`, or in its next step because of
/// `state`.
fn panic_on(state: &[u8], subject: &Subject<'_>, json: &str) -> Option<PluginError> {
    let next = |instance: &mut Live| instance.step(&subject.stream(3)).map(drop);
    let alone = next(&mut subject.create_from(json).ok()?);
    let mut instance = subject.create_from(json).ok()?;
    let loaded = instance.load(state);
    // A step that also panics without the state is left to another check.
    let outcome = if alone.is_err() {
        loaded
    } else {
        loaded.and_then(|()| next(&mut instance))
    };
    outcome.err().filter(is_panic)
}

/// Checks the state's size over a longer stream of steps; the stream is shorter where steps are
/// slow.
pub(super) fn state_growth(subject: &Subject<'_>) -> Verdict {
    let (mut instance, start) = (subject.create()?, Instant::now());
    let mut sizes = Vec::new();
    for step in 0..64_u64 {
        instance.step(&subject.stream(step))?;
        if (step + 1).is_power_of_two() {
            sizes.push(instance.save()?.len());
        }
        if start.elapsed() > PATIENCE {
            break;
        }
    }
    let steps = 1_u64 << (sizes.len() - 1);
    let [.., first, second, third] = sizes[..] else {
        return skipped("its steps take too long for this");
    };
    let sentence = format!(
        "{first}, {second} and {third} bytes after {}, {} and {steps} steps",
        steps / 4,
        steps / 2
    );
    // If every step adds equally many bytes, twice as many steps add twice as many bytes.
    let (early, late) = (second.saturating_sub(first), third.saturating_sub(second));
    if early > 0 && 2 * late > 3 * early {
        return warning(format!("its state grows with every step: {sentence}"));
    }
    success(sentence)
}
