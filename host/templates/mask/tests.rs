use capo_plugin::testing::{self, Fixture, snapshot};
use insta::assert_snapshot;

use super::*;

#[test]
fn drops_what_is_above_the_limit_and_nothing_else() {
    let fixture = Fixture::new(2, 3).logps(&[-0.1, -0.2, -9.0, -0.1, -9.0, -0.3]);
    let mut mask = testing::mask::<SurpriseLimit>("max_nats = 5.0").unwrap();
    assert_eq!(fixture.mask(&mut mask).unwrap().keep, [1, 1, 0, 1, 0, 1]);
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
    assert_snapshot!(snapshot(&mut mask), @"
    ragged: B 4, T 5, G 2
      keep
        00101
        100..
        0....
        1110.
      surprise
        1.974e0 2.376e0 1.077e0 2.301e0 1.044e0
        4.810e-1 2.125e0 2.620e0 .*2
        1.936e0 .*4
        1.804e-2 5.231e-1 1.169e0 2.933e0 .
    stale: B 3, T 4, G 3
      keep
        0010
        1100
        1000
      surprise
        1.974e0 2.376e0 1.077e0 2.301e0
        1.044e0 4.810e-1 2.125e0 2.620e0
        9.269e-1 1.989e0 1.936e0 2.266e0
    one token: B 2, T 1, G 2
      keep
        0
        0
      surprise
        1.974e0
        2.376e0
    without tokens: B 3, T 3, G 3
      keep
        001
        ...
        00.
      surprise
        1.974e0 2.376e0 1.077e0
        .*3
        2.125e0 2.620e0 .
    far: B 2, T 3, G 2
      keep
        101
        011
      surprise
        1.000e-6 4.000e1 1.000e0
        4.000e1 1.000e-6 1.000e0
    ");
}
