//! Cases that the comparison with TRL and verl in `host/trainer/tests/suite/objectives.rs` does not
//! hold.

use super::*;
use capo_plugin::testing::{Fixture, advantage};

fn two_groups() -> Fixture {
    Fixture::new(4, 2)
        .groups_of(2)
        .rewards(&[1.0, 0.0, 1.0, 1.0])
        .lengths(&[2, 1, 2, 2])
}

fn near(values: &[f32], expected: &[f32]) -> bool {
    values.len() == expected.len()
        && values
            .iter()
            .zip(expected)
            .all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn group_normalized_divides_by_the_unbiased_std() {
    let mut component = advantage::<GroupNormalized>("epsilon = 0.0001").unwrap();
    let a = 0.5 / (0.5_f32.sqrt() + 1e-4);
    assert_eq!(
        two_groups().estimate(&mut component).unwrap(),
        [a, a, -a, 0.0, 0.0, 0.0, 0.0, 0.0]
    );
}

#[test]
fn reward_as_advantage_has_no_baseline_unless_asked() {
    let mut component = advantage::<RewardAsAdvantage>("").unwrap();
    assert_eq!(
        two_groups().estimate(&mut component).unwrap(),
        [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    );
    let mut standardised = advantage::<RewardAsAdvantage>("normalize_advantages = true").unwrap();
    let (high, low) = (0.25 / 0.5001, -0.75 / 0.5001);
    let expected = [high, high, low, 0.0, high, high, high, high];
    assert!(near(
        &two_groups().estimate(&mut standardised).unwrap(),
        &expected
    ));
}

#[test]
fn a_group_of_one_gets_zero() {
    let fixture = Fixture::new(2, 1).groups_of(1).rewards(&[1.0, 0.0]);
    for mut component in [
        advantage::<GroupNormalized>("").unwrap(),
        advantage::<LeaveOneOut>("").unwrap(),
    ] {
        assert_eq!(fixture.estimate(&mut component).unwrap(), [0.0, 0.0]);
    }
}

#[test]
fn a_batch_without_a_difference_stays_finite() {
    let fixture = Fixture::new(2, 2).groups_of(2).rewards(&[1.0, 1.0]);
    for table in [
        "",
        "epsilon = 0",
        "scale_rewards = \"batch\"",
        "multi_objective_aggregation = \"normalize_then_sum\"",
    ] {
        assert_eq!(
            fixture
                .estimate(&mut advantage::<GroupNormalized>(table).unwrap())
                .unwrap(),
            [0.0; 4],
            "{table}"
        );
    }
    for table in ["", "baseline = \"group\""] {
        assert_eq!(
            fixture
                .estimate(&mut advantage::<ReinforcePlusPlus>(table).unwrap())
                .unwrap(),
            [0.0; 4],
            "{table}"
        );
    }
    let mut reinforce = advantage::<RewardAsAdvantage>("normalize_advantages = true").unwrap();
    assert_eq!(fixture.estimate(&mut reinforce).unwrap(), [0.0; 4]);
}

#[test]
fn values_and_pairs_that_do_not_go_are_refused() {
    let of_group = |table| {
        advantage::<GroupNormalized>(table)
            .err()
            .unwrap()
            .to_string()
    };
    let of_others = |table| advantage::<LeaveOneOut>(table).err().unwrap().to_string();
    let plus_plus = |table| {
        advantage::<ReinforcePlusPlus>(table)
            .err()
            .unwrap()
            .to_string()
    };
    let weighted = "multi_objective_aggregation = \"normalize_then_sum\"\nreward_weights = [1, 2]";
    let said = [
        of_group("epsilon = -1"),
        of_group("reward_weights = [1]"),
        of_group("scale_rewards = \"none\"\nmulti_objective_aggregation = \"normalize_then_sum\""),
        two_groups()
            .estimate(&mut advantage::<GroupNormalized>(weighted).unwrap())
            .unwrap_err()
            .to_string(),
        of_others("reward_clip_range = [1, 0]"),
        plus_plus("gamma = 1.5"),
        plus_plus("gamma = 0.5\nbaseline = \"group\""),
    ];
    assert_eq!(
        include_str!("refused.txt").lines().collect::<Vec<_>>(),
        said
    );
}
