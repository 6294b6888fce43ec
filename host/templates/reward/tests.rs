use capo_plugin::testing::{self, RolloutFixture, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn pays_for_right_answers_by_their_length() {
    let fixture = RolloutFixture::new(&["=4", "1 3=4", "=5", "=4"]);
    let fixture = fixture.truncated(&[false, false, false, true]);
    let mut reward = testing::reward::<Brevity>("price = 0.25").unwrap();
    let scored = fixture.score(&mut reward).unwrap();
    assert_eq!(scored.rewards, [0.5, 0.1, 0.0, 0.0]);
    assert_eq!(scored.records.number("right"), Some(0.5));
}

/// Runs the checks of `host check` behind the real ABI, as in a trainer; an error means a broken
/// rule. Among them is a state that is saved and loaded between two steps.
#[test]
fn keeps_the_rules_on_every_rollout() {
    testing::conform(&[]).unwrap();
}

#[test]
fn does_what_it_did() {
    let mut reward = testing::reward::<Brevity>("").unwrap();
    assert_snapshot!(snapshot(&mut reward));
}
