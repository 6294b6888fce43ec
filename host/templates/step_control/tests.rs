use capo_plugin::testing::{self, Fixture, Measured, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn a_step_of_four_times_the_limit_is_halved() {
    let (fixture, update) = (Fixture::new(2, 3), Measured { kl: 4e-3, ..Measured::default() });
    let mut control = testing::step_control::<KlLimit>("target = 1e-3").unwrap();
    assert_eq!(fixture.control(&mut control, update).unwrap().scales, [0.5; 3]);
    let short = Measured { kl: 1e-6, ..update };
    assert_eq!(fixture.control(&mut control, short).unwrap().scales, [1.0; 3]);
}

/// Behind the real ABI, as in a trainer: an error would be a broken rule. The state is saved and
/// loaded after every step, as if the run had been stopped there.
#[test]
fn keeps_the_rules_on_every_batch() {
    let mut control = testing::step_control::<KlLimit>("").unwrap();
    for (name, fixture) in testing::batches() {
        fixture.control(&mut control, Measured::default()).expect(name);
        let state = control.save().expect(name);
        control = testing::step_control::<KlLimit>("").unwrap();
        control.load(&state).expect(name);
    }
}

#[test]
fn does_what_it_did() {
    let mut control = testing::step_control::<KlLimit>("").unwrap();
    assert_snapshot!(snapshot(&mut control), @"");
}
