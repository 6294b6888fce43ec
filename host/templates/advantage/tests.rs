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
    assert_snapshot!(snapshot(&mut advantage), @"
    ragged: B 4, T 5, G 2
      advantage
        1.000e0*5
        -1.000e0*3 .*2
        2.500e-1 .*4
        -2.500e-1*4 .
      advantage_limited = 0
    stale: B 3, T 4, G 3
      advantage
        -1.000e0*4
        5.000e-1*4
        5.000e-1*4
      advantage_limited = 0
    one token: B 2, T 1, G 2
      advantage
        0
        0
      advantage_limited = 0
    without tokens: B 3, T 3, G 3
      advantage
        -5.000e-1*3
        .*3
        -5.000e-1*2 .
      advantage_limited = 0
    far: B 2, T 3, G 2
      advantage
        1.000e1*3
        -1.000e1*3
      advantage_limited = 1.000e0
    ");
}
