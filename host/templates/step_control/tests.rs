use capo_plugin::testing::{self, Fixture, Measured, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn a_step_of_four_times_the_limit_is_halved() {
    let (fixture, update) = (
        Fixture::new(2, 3),
        Measured {
            kl: 4e-3,
            ..Measured::default()
        },
    );
    let mut control = testing::step_control::<KlLimit>("target = 1e-3").unwrap();
    assert_eq!(
        fixture.control(&mut control, update).unwrap().scales,
        [0.5; 3]
    );
    let short = Measured { kl: 1e-6, ..update };
    assert_eq!(
        fixture.control(&mut control, short).unwrap().scales,
        [1.0; 3]
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
    let mut control = testing::step_control::<KlLimit>("").unwrap();
    assert_snapshot!(snapshot(&mut control));
}
