//! Batches and rollouts that every component should handle.

use super::{Fixture, RolloutFixture};
use crate::{CompletionContext, ContextData, PromptContext, Purpose};

/// Named batches of every kind that a trainer makes, in the order of their steps: completions of
/// different lengths, tokens sampled by an older policy, a single token, a completion without
/// tokens, and unusual values.
pub fn batches() -> Vec<(&'static str, Fixture)> {
    let ragged = Fixture::new(4, 5)
        .groups_of(2)
        .lengths(&[5, 3, 1, 4])
        .rewards(&[1.0, 0.0, 0.5, 0.25]);
    let older = [
        -0.6, -1.4, -0.2, -2.9, -0.1, -1.1, -0.7, -2.2, -0.4, -1.8, -0.9, -0.3,
    ];
    let stale = Fixture::new(3, 4)
        .old_logps(&older)
        .rewards(&[0.0, 1.0, 1.0]);
    let far = Fixture::new(2, 3)
        .rewards(&[1e6, -1e6])
        .advantages(&[1e3, -1e3, 1e-6, -1e3, 1e3, 0.0]);
    let far = far
        .logps(&[-1e-6, -40.0, -1.0, -40.0, -1e-6, -1.0])
        .old_logps(&[-40.0, -1e-6, -1.0, -40.0, -1e-6, -1.0]);
    let named = [
        ("ragged", ragged.truncated(&[1, 0, 0, 0])),
        ("stale", stale),
        ("one token", Fixture::new(2, 1).rewards(&[1.0, 1.0])),
        ("without tokens", Fixture::new(3, 3).lengths(&[3, 0, 2])),
        ("far", far),
    ];
    (0..)
        .zip(named)
        .map(|(step, (name, fixture))| (name, fixture.step(step)))
        .collect()
}

/// Named rollouts of every kind that a trainer makes, in the order of their steps: a group, several
/// prompts with columns, one completion, odd texts, and held-out prompts.
pub fn rollouts() -> Vec<(&'static str, RolloutFixture)> {
    let group =
        RolloutFixture::new(&["1+3=4", "4", "5", "2+"]).truncated(&[false, false, false, true]);
    let rows = [
        r#"{"answer": 4, "level": "easy"}"#,
        r#"{"answer": "12", "level": "hard"}"#,
    ];
    let prompts = RolloutFixture::new(&["4", "4.0", "12", "-12"])
        .groups_of(2)
        .prompts(&["2+2=", "2+2=", "5+7=", "5+7="])
        .answers(&["4", "4", "12", "12"])
        .columns(&[rows[0], rows[0], rows[1], rows[1]]);
    let long = "so ".repeat(1000) + "4";
    let odd = RolloutFixture::new(&["", " 4 \n", "vier — 四", &long, "NaN", "1e400"]);
    let named = [
        ("group", group),
        ("prompts", prompts),
        ("one completion", RolloutFixture::new(&["4"])),
        ("odd texts", odd),
        (
            "held out",
            RolloutFixture::new(&["4", "5"])
                .groups_of(1)
                .purpose(Purpose::EVALUATION),
        ),
    ];
    (0..)
        .zip(named)
        .map(|(step, (name, fixture))| (name, fixture.step(step)))
        .collect()
}

/// A context of four completions of three tokens for two prompts, with an empty text, a two-byte
/// character and a prompt without a dataset line. For tests of what carries a context, here and in
/// a loader.
#[doc(hidden)]
pub fn odd_context() -> ContextData {
    let prompt = |ids, number, line| PromptContext { ids, number, line };
    let prompts = [prompt(&[1, 2][..], 7, Some(3)), prompt(&[4][..], 8, None)];
    let completion = |text, spans, sampler_logps| CompletionContext {
        text,
        spans,
        sampler_logps,
    };
    let completions = [
        completion("ab", &[[0, 1], [1, 2]][..], &[-0.5, -1.0][..]),
        completion("", &[], &[]),
        completion("\u{e9}", &[[0, 0], [0, 2], [2, 2]], &[-0.1, -0.2, -0.3]),
        completion("xyz", &[[0, 3]], &[-2.0]),
    ];
    let mut data = ContextData::new(3, prompts.into_iter(), completions.into_iter());
    data.add_reward("exact_match", &[1.0, 0.0, 0.5, 0.0]);
    data.add_reward("length", &[0.1, 0.2, 0.3, 0.4]);
    let logps = (0..24)
        .map(|i| if i % 2 == 0 { -0.25 } else { f32::NEG_INFINITY })
        .collect();
    data.set_top_k(2, (0..24).map(|i| i % 16).collect(), logps);
    data
}
