//! Tests of every id: its keys, and its results on the rollouts that every component should handle.

mod golden;

use capo_plugin::{Image, Point, RewardHandle, testing};
use insta::assert_snapshot;

/// The reward `id` with a table in JSON.
fn reward(id: &str, json: &str) -> RewardHandle {
    Image::own()
        .reward(id, json)
        .unwrap_or_else(|error| panic!("{id}: {error}"))
}

/// Keys that a reward requires.
fn keys(id: &str) -> &'static str {
    match id {
        "command" => r#"{"command": ["sh", "-c", "while read -r line; do echo 0.5; done"]}"#,
        "regex" => r#"{"pattern": "^-?[0-9]+$"}"#,
        "soft_overlong" => r#"{"max_completion_len": 4, "soft_punish_cache": 3}"#,
        _ => "{}",
    }
}

#[test]
fn every_reward() {
    for component in Image::own().components(Point::Reward).unwrap() {
        let id = component.id.as_str();
        assert_snapshot!(id, testing::snapshot(&mut reward(id, keys(id))));
    }
}
