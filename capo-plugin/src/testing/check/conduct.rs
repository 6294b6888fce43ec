//! The check with calls that no host makes.

use super::outcome::{Verdict, failed, success, warning};
use super::subject::{Subject, is_panic};
use crate::testing::{Fixture, Input, RolloutFixture};
use crate::{Inputs, Point};

/// Calls that no host makes: without completions, with columns that are not JSON, without tokens, or without an input
/// that the component asked for.
fn odd_calls(subject: &Subject<'_>, asked: Inputs) -> Vec<(String, Input)> {
    if subject.point == Point::Reward {
        let garbled = RolloutFixture::new(&["4", "5"]).columns(&["{\"answer\": ", "no JSON"]);
        return vec![
            ("on a rollout without completions".into(), Input::Rollout(RolloutFixture::new(&[]))),
            ("on columns that are no JSON".into(), Input::Rollout(garbled)),
        ];
    }
    let mut calls = vec![("on a batch without tokens".to_owned(), Fixture::new(2, 0).into())];
    for flag in (0..Inputs::KNOWN.0.count_ones()).map(|bit| Inputs(1 << bit)).filter(|flag| asked.contains(*flag)) {
        if let Input::Batch(mut batch) = subject.stream(0) {
            batch.withheld = flag;
            calls.push((format!("without input {:#x}, which it asked for", flag.0), Input::Batch(batch)));
        }
    }
    calls
}

pub(super) fn panics_contained(subject: &Subject<'_>) -> Verdict {
    for (what, input) in odd_calls(subject, subject.create()?.inputs()) {
        let mut instance = subject.create()?;
        let Some(panic) = instance.step(&input).err().filter(is_panic) else { continue };
        if instance.step(&subject.stream(0)).is_ok() {
            return failed(format!("after a panic {what} the instance goes on as if nothing had happened"));
        }
        return warning(format!("{what}: {panic} (contained; return an error)"));
    }
    // The component's last call is its drop, where a panic cannot be reported. `host check` runs the check in a separate process and
    // notices it.
    success("calls that no host makes do not make it panic")
}
