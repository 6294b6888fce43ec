use capo_plugin::testing::{self, Fixture, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn what_is_above_the_limit_counts_less() {
    let fixture = Fixture::new(2, 3).logps(&[-0.5, -2.0, -4.0, -8.0, -1.0, -0.0]);
    let mut weight = testing::weight::<SurpriseWeight>("max_nats = 2.0").unwrap();
    assert_eq!(
        fixture.weigh(&mut weight).unwrap().weights,
        [1.0, 1.0, 0.5, 0.25, 1.0, 1.0]
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
    let mut weight = testing::weight::<SurpriseWeight>("max_nats = 1.5").unwrap();
    assert_snapshot!(snapshot(&mut weight));
}
