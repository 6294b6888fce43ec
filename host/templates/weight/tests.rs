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
    assert_snapshot!(snapshot(&mut weight), @"
    ragged: B 4, T 5, G 2
      weight
        7.598e-1 6.312e-1 1.000e0 6.518e-1 1.000e0
        1.000e0 7.057e-1 5.726e-1 .*2
        7.749e-1 .*4
        1.000e0*3 5.114e-1 .
    stale: B 3, T 4, G 3
      weight
        7.598e-1 6.312e-1 1.000e0 6.518e-1
        1.000e0*2 7.057e-1 5.726e-1
        1.000e0 7.542e-1 7.749e-1 6.621e-1
    one token: B 2, T 1, G 2
      weight
        7.598e-1
        6.312e-1
    without tokens: B 3, T 3, G 3
      weight
        7.598e-1 6.312e-1 1.000e0
        .*3
        7.057e-1 5.726e-1 .
    far: B 2, T 3, G 2
      weight
        1.000e0 3.750e-2 1.000e0
        3.750e-2 1.000e0*2
    ");
}
