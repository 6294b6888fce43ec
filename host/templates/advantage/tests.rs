use capo_plugin::testing::{self, Fixture, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn compares_with_the_others_of_the_group() {
    let fixture = Fixture::new(4, 1)
        .groups_of(2)
        .rewards(&[1.0, 0.0, 0.5, 20.5]);
    let mut advantage = testing::advantage::<LeaveOneOut>("").unwrap();
    assert_eq!(
        fixture.estimate(&mut advantage).unwrap(),
        [1.0, -1.0, -10.0, 10.0]
    );
}

/// Runs the checks of `host check` behind the real ABI, as in a trainer; an error means a broken
/// rule. Among them is a state that is saved and loaded between two steps.
#[test]
fn keeps_the_rules_on_every_batch() {
    testing::conform(&[]).unwrap();
}

#[test]
fn does_what_it_did() {
    let mut advantage = testing::advantage::<LeaveOneOut>("").unwrap();
    assert_snapshot!(snapshot(&mut advantage));
}
