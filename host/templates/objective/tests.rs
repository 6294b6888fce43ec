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
    assert_snapshot!(snapshot(&mut objective), @"
    ragged: B 4, T 5, G 2
      loss
        1.284e0 -1.246e0 -7.360e-1 -3.400e-1 2.046e-1
        4.016e-1 -1.937e0 -9.982e-1 .*2
        -7.846e-1 .*4
        1.186e-2 -4.736e-1 6.976e-1 -8.162e-1 .
      dloss_dlogp
        -6.502e-1 5.245e-1 6.830e-1 1.478e-1 -1.959e-1
        -8.349e-1 9.112e-1 3.810e-1 .*2
        4.053e-1 .*4
        -6.572e-1 9.055e-1 -5.969e-1 2.783e-1 .
      ratio_limited = 0
    stale: B 3, T 4, G 3
      loss
        3.248e-1 -4.694e-1 -3.060e-1 -6.189e-1
        7.959e-2 7.458e-1 -4.656e-1 -6.561e-1
        -4.646e-1 -5.602e-1 -2.785e-1 1.164e-1
      dloss_dlogp
        -1.645e-1 1.975e-1 2.840e-1 2.689e-1
        -7.623e-2 -1.550e0 2.191e-1 2.505e-1
        5.012e-1 2.817e-1 1.439e-1 -5.139e-2
      ratio_limited = 0
    one token: B 2, T 1, G 2
      loss
        1.284e0
        -1.246e0
      dloss_dlogp
        -6.502e-1
        5.245e-1
      ratio_limited = 0
    without tokens: B 3, T 3, G 3
      loss
        1.284e0 -1.246e0 -7.360e-1
        .*3
        -1.937e0 -9.982e-1 .
      dloss_dlogp
        -6.502e-1 5.245e-1 6.830e-1
        .*3
        9.112e-1 3.810e-1 .
      ratio_limited = 0
    far: B 2, T 3, G 2
      loss
        2.000e-3 -1.699e-13 1.000e-6
        -4.000e4 1.000e-3 0
      dloss_dlogp
        -2.000e3 4.248e-15 -1.000e-6
        1.000e3 -1.000e3 0
      ratio_limited = 1.667e-1
    ");
}
