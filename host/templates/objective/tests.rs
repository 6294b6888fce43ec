use capo_plugin::testing::{self, Fixture, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn weighs_tokens_up_to_the_limit() {
    let fixture = Fixture::new(1, 2)
        .advantages(&[1.0, 1.0])
        .logps(&[-1.0, -1.0]);
    let fixture = fixture.old_logps(&[-1.0, -9.0]);
    let mut objective = testing::objective::<LimitedRatio>("max_ratio = 3.0").unwrap();
    let (loss, slope) = fixture.evaluate(&mut objective).unwrap();
    assert_eq!(slope, [-1.0, -3.0]);
    assert_eq!(loss, [1.0, 3.0]);
}

/// Runs the checks of `host check` behind the real ABI, as in a trainer; an error means a broken
/// rule. Among them is a state that is saved and loaded between two steps.
#[test]
fn keeps_the_rules_on_every_batch() {
    testing::conform(&[]).unwrap();
}

#[test]
fn does_what_it_did() {
    let mut objective = testing::objective::<LimitedRatio>("").unwrap();
    assert_snapshot!(snapshot(&mut objective));
}
