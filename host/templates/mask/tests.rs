use capo_plugin::testing::{self, Fixture, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn drops_what_is_above_the_limit_and_nothing_else() {
    let fixture = Fixture::new(2, 3).logps(&[-0.1, -0.2, -9.0, -0.1, -9.0, -0.3]);
    let mut mask = testing::mask::<SurpriseLimit>("max_nats = 5.0").unwrap();
    assert_eq!(
        fixture.mask(&mut mask).unwrap().token_mask,
        [1, 1, 0, 1, 0, 1]
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
    let mut mask = testing::mask::<SurpriseLimit>("max_nats = 1.5").unwrap();
    assert_snapshot!(snapshot(&mut mask));
}
