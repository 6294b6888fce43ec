use super::*;
use capo_plugin::testing::{Fixture, advantage};

fn two_groups() -> Fixture {
    Fixture::new(4, 2).groups_of(2).rewards(&[1.0, 0.0, 1.0, 1.0]).lengths(&[2, 1, 2, 2])
}

fn near(values: &[f32], expected: &[f32]) -> bool {
    values.len() == expected.len() && values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn group_normalized_divides_by_the_unbiased_std() {
    let mut component = advantage::<GroupNormalized>("epsilon = 0.0001").unwrap();
    let a = 0.5 / (0.5_f32.sqrt() + 1e-4);
    assert_eq!(two_groups().estimate(&mut component).unwrap(), [a, a, -a, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_batch_or_nothing_may_divide_instead() {
    let mut batch = advantage::<GroupNormalized>("scale_rewards = \"batch\"").unwrap();
    let a = 0.5 / (0.25_f32.sqrt() + 1e-4);
    assert!(near(&two_groups().estimate(&mut batch).unwrap(), &[a, a, -a, 0.0, 0.0, 0.0, 0.0, 0.0]));
    let mut none = advantage::<GroupNormalized>("scale_rewards = \"none\"").unwrap();
    assert_eq!(two_groups().estimate(&mut none).unwrap(), [0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn group_centered_only_subtracts_the_mean() {
    let mut component = advantage::<GroupCentered>("").unwrap();
    assert_eq!(two_groups().estimate(&mut component).unwrap(), [0.5, 0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn one_is_left_out_of_its_own_baseline() {
    let fixture = Fixture::new(3, 1).groups_of(3).rewards(&[3.0, 0.0, 0.0]);
    let mut component = advantage::<LeaveOneOut>("").unwrap();
    assert_eq!(fixture.estimate(&mut component).unwrap(), [3.0, -1.5, -1.5]);
    let mut clipped = advantage::<LeaveOneOut>("reward_clip_range = [0, 1]").unwrap();
    assert_eq!(fixture.estimate(&mut clipped).unwrap(), [1.0, -0.5, -0.5]);
}

#[test]
fn reward_as_advantage_has_no_baseline_unless_asked() {
    let mut component = advantage::<RewardAsAdvantage>("").unwrap();
    assert_eq!(two_groups().estimate(&mut component).unwrap(), [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    let mut standardised = advantage::<RewardAsAdvantage>("normalize_advantages = true").unwrap();
    let (high, low) = (0.25 / 0.5001, -0.75 / 0.5001);
    let expected = [high, high, low, 0.0, high, high, high, high];
    assert!(near(&two_groups().estimate(&mut standardised).unwrap(), &expected));
}

/// verl's `masked_whiten`: mean and unbiased variance over tokens.
fn whitened(values: &[f32]) -> Vec<f32> {
    let n = values.len() as f32;
    let mean = values.iter().sum::<f32>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / (n - 1.0);
    values.iter().map(|value| (value - mean) / (variance + 1e-8).sqrt()).collect()
}

#[test]
fn reinforce_plus_plus_standardises_tokens_and_not_completions() {
    let mut component = advantage::<ReinforcePlusPlus>("").unwrap();
    let real = whitened(&[1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
    let expected = [real[0], real[1], real[2], 0.0, real[3], real[4], real[5], real[6]];
    assert!(near(&two_groups().estimate(&mut component).unwrap(), &expected));
}

#[test]
fn a_reward_counts_less_earlier() {
    let mut component = advantage::<ReinforcePlusPlus>("gamma = 0.5").unwrap();
    let fixture = Fixture::new(2, 3).rewards(&[1.0, 2.0]).lengths(&[3, 2]);
    let real = whitened(&[0.25, 0.5, 1.0, 1.0, 2.0]);
    let expected = [real[0], real[1], real[2], real[3], real[4], 0.0];
    assert!(near(&fixture.estimate(&mut component).unwrap(), &expected));
}

#[test]
fn distance_from_the_reference_is_part_of_the_reward() {
    let logps = [-1.0, -1.0, -1.0, -1.0];
    let ref_logps = [-1.5, -2.0, -1.0, -0.5];
    let fixture = || Fixture::new(2, 2).groups_of(2).rewards(&[1.0, 0.0]).old_logps(&logps).ref_logps(&ref_logps);
    let mut returns = advantage::<ReinforcePlusPlus>("beta = 0.2").unwrap();
    let expected = whitened(&[1.0 - 0.2 - 0.1, 1.0 - 0.2, 0.1, 0.1]);
    assert!(near(&fixture().estimate(&mut returns).unwrap(), &expected));
    let mut centred = advantage::<ReinforcePlusPlus>("beta = 0.2\nbaseline = \"group\"").unwrap();
    let expected = whitened(&[0.3, 0.3, -0.3, -0.3]);
    assert!(near(&fixture().estimate(&mut centred).unwrap(), &expected));
    let mut left_out = advantage::<LeaveOneOut>("beta = 0.2").unwrap();
    assert!(near(&fixture().estimate(&mut left_out).unwrap(), &[0.6, 0.6, -0.6, -0.6]));
}

#[test]
fn a_group_of_one_gets_zero() {
    let fixture = Fixture::new(2, 1).groups_of(1).rewards(&[1.0, 0.0]);
    for mut component in [advantage::<GroupNormalized>("").unwrap(), advantage::<LeaveOneOut>("").unwrap()] {
        assert_eq!(fixture.estimate(&mut component).unwrap(), [0.0, 0.0]);
    }
}

#[test]
fn a_batch_without_a_difference_stays_finite() {
    let fixture = Fixture::new(2, 2).groups_of(2).rewards(&[1.0, 1.0]);
    for table in ["", "scale_rewards = \"batch\"", "multi_objective_aggregation = \"normalize_then_sum\""] {
        assert_eq!(fixture.estimate(&mut advantage::<GroupNormalized>(table).unwrap()).unwrap(), [0.0; 4], "{table}");
    }
    for table in ["", "baseline = \"group\""] {
        assert_eq!(fixture.estimate(&mut advantage::<ReinforcePlusPlus>(table).unwrap()).unwrap(), [0.0; 4], "{table}");
    }
    let mut reinforce = advantage::<RewardAsAdvantage>("normalize_advantages = true").unwrap();
    assert_eq!(fixture.estimate(&mut reinforce).unwrap(), [0.0; 4]);
}

#[test]
fn values_and_pairs_that_do_not_go_are_refused() {
    let of_group = |table| advantage::<GroupNormalized>(table).err().unwrap().to_string();
    assert_eq!(of_group("epsilon = -1"), "`epsilon` is -1 (use 0 or more)");
    assert_eq!(
        of_group("reward_weights = [1]"),
        "`reward_weights` is set, but `multi_objective_aggregation` is `sum_then_normalize`, which has no use for it (set `weight` of each `[[reward]]`, or `normalize_then_sum`)"
    );
    assert_eq!(
        of_group("scale_rewards = \"none\"\nmulti_objective_aggregation = \"normalize_then_sum\""),
        "`scale_rewards` is set, but `multi_objective_aggregation` is `normalize_then_sum`, which normalises by group and by batch (remove one of them)"
    );
    let table = "multi_objective_aggregation = \"normalize_then_sum\"\nreward_weights = [1, 2]";
    let error = two_groups().estimate(&mut advantage::<GroupNormalized>(table).unwrap()).unwrap_err();
    let sentence =
        "`reward_weights` has 2 numbers, but the run has 1 rewards (give one for each `[[reward]]`, in their order)";
    assert!(error.to_string().contains(sentence), "{error}");
    assert_eq!(
        advantage::<LeaveOneOut>("reward_clip_range = [1, 0]").err().unwrap().to_string(),
        "`reward_clip_range` is [1, 0] (use two finite numbers, the lower one first)"
    );
    let plus_plus = |table| advantage::<ReinforcePlusPlus>(table).err().unwrap().to_string();
    assert_eq!(plus_plus("gamma = 1.5"), "`gamma` is 1.5 (use 0 to 1)");
    assert_eq!(
        plus_plus("gamma = 0.5\nbaseline = \"group\""),
        "`gamma` is 0.5, but `baseline` is `group`, where each token has the whole reward (remove one of them)"
    );
}
