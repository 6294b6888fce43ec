//! Metrics of sampled completions and their rewards (TRL: `GRPOTrainer._generate` and
//! `_generate_and_score_completions`).

use super::line::Values;
use crate::environment::{CallCount, Conversation};
use crate::reward::Scored;
use crate::stages::dynamic_sampling::Filtered;
use crate::stages::rollout::RolloutRecord;

/// Largest standard deviation at which a group's rewards count as equal (`torch.isclose` to 0).
const ZERO_STD: f64 = 1e-8;

/// The host's metrics of a rollout.
pub(super) fn rollout(record: &RolloutRecord) -> Values {
    let mut values = lengths(&record.lengths, &record.truncated);
    values.extend(rewards(&record.rewards, record.group_size));
    values.extend(episodes(&record.conversations));
    if let Some(filtered) = &record.filtered {
        values.extend(dynamic_sampling(filtered));
    }
    values
}

fn dynamic_sampling(filtered: &Filtered) -> [(String, f64); 4] {
    let Filtered {
        batches,
        dropped,
        without_difference,
        reward,
    } = *filtered;
    [
        ("num_gen_batches", batches as f64),
        ("dropped_groups", dropped as f64),
        ("groups_without_difference", without_difference as f64),
        ("reward", reward),
    ]
    .map(|(name, value)| (format!("dynamic_sampling/{name}"), value))
}

/// Lengths of B completions, in tokens that the model drew, with the end token.
///
/// `completions/{mean,min,max}_length` covers all completions.
/// `completions/{mean,min,max}_terminated_length` covers the completions that ended by themselves
/// (0 without any). `completions/clipped_ratio` is the share of completions that the length limit
/// cut off.
///
/// `lengths` and `truncated` are `[B]`, at least one.
fn lengths(lengths: &[usize], truncated: &[u8]) -> Values {
    let all: Vec<f64> = lengths.iter().map(|length| *length as f64).collect();
    let mut terminated: Vec<f64> = all
        .iter()
        .zip(truncated)
        .filter(|(_, cut)| **cut == 0)
        .map(|(length, _)| *length)
        .collect();
    let clipped_ratio = 1.0 - terminated.len() as f64 / all.len() as f64;
    if terminated.is_empty() {
        terminated.push(0.0);
    }
    let mut values = vec![("completions/clipped_ratio".to_string(), clipped_ratio)];
    for (suffix, lengths) in [("length", all), ("terminated_length", terminated)] {
        values.push((format!("completions/mean_{suffix}"), mean(&lengths)));
        values.push((
            format!("completions/min_{suffix}"),
            lengths.iter().copied().fold(f64::INFINITY, f64::min),
        ));
        values.push((
            format!("completions/max_{suffix}"),
            lengths.iter().copied().fold(0.0, f64::max),
        ));
    }
    values
}

/// Mean number of the model's turns in an episode (`environment/turns`), and share of episodes that
/// the environment ended (`environment/ended`).
///
/// With tools, `tools/call_frequency` is the number of calls per completion, and
/// `tools/failure_frequency` the share of calls that failed (0 without calls).
pub fn episodes(conversations: &[Conversation]) -> Values {
    if conversations.is_empty() {
        return Values::new();
    }
    let mut turns = 0;
    let mut ended = 0;
    let mut has_tools = false;
    let mut calls = CallCount::default();
    for conversation in conversations {
        turns += conversation.turns().count();
        ended += usize::from(conversation.ended);
        if let Some(own) = conversation.calls {
            has_tools = true;
            calls.all += own.all;
            calls.failed += own.failed;
        }
    }
    let count = conversations.len() as f64;
    let mut values = vec![
        ("environment/turns".to_owned(), turns as f64 / count),
        ("environment/ended".to_owned(), ended as f64 / count),
    ];
    if has_tools {
        let failed = if calls.all > 0 {
            (calls.failed as f64 / count) / (calls.all as f64 / count)
        } else {
            0.0
        };
        values.push(("tools/call_frequency".to_owned(), calls.all as f64 / count));
        values.push(("tools/failure_frequency".to_owned(), failed));
    }
    values
}

/// The rewards of B completions in groups of `group_size`, reward units.
///
/// `reward` and `reward_std` are mean and standard deviation of the weighted sums over the whole
/// batch, as in TRL since 2025. (Before, TRL took the mean of the groups' deviations.)
/// `rewards/<function>/{mean,std}` are the same for each reward before weighting.
/// `frac_reward_zero_std` is the share of completions in groups with equal sums. Deviations are
/// unbiased (divided by n − 1), and 0 for a single completion. The batch holds at least one group,
/// and only whole groups.
fn rewards(scored: &Scored, group_size: usize) -> Values {
    let total = widen(&scored.total);
    let groups = total.chunks(group_size);
    let constant = groups.filter(|group| std(group) <= ZERO_STD).count();
    let mut values = vec![
        ("reward".to_string(), mean(&total)),
        ("reward_std".to_string(), std(&total)),
        (
            "frac_reward_zero_std".to_string(),
            (constant * group_size) as f64 / total.len() as f64,
        ),
    ];
    for (name, rewards) in &scored.per_reward {
        let rewards = widen(rewards);
        values.push((format!("rewards/{name}/mean"), mean(&rewards)));
        values.push((format!("rewards/{name}/std"), std(&rewards)));
    }
    values
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The unbiased standard deviation; 0 for fewer than two values.
fn std(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Said;

    /// Asserts names, order and values; values are compared to eight decimals.
    fn assert_values(found: &[(String, f64)], expected: &[(&str, f64)]) {
        assert!(
            found
                .iter()
                .map(|(name, _)| name)
                .eq(expected.iter().map(|(name, _)| name)),
            "{found:?}"
        );
        for ((name, found), (_, expected)) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() < 1e-8,
                "{name}: {found}, expected {expected}"
            );
        }
    }

    #[test]
    fn lengths_agree_with_numbers_computed_by_hand() {
        assert_values(
            &lengths(&[4, 10, 7, 3], &[0, 1, 0, 0]),
            &[
                ("completions/clipped_ratio", 0.25),
                ("completions/mean_length", 6.0),
                ("completions/min_length", 3.0),
                ("completions/max_length", 10.0),
                ("completions/mean_terminated_length", 14.0 / 3.0),
                ("completions/min_terminated_length", 3.0),
                ("completions/max_terminated_length", 7.0),
            ],
        );
        let none_terminated = lengths(&[5, 5], &[1, 1]);
        assert_eq!(none_terminated[0].1, 1.0);
        assert!(
            none_terminated[4..]
                .iter()
                .all(|(name, value)| name.contains("terminated") && *value == 0.0)
        );
    }

    #[test]
    fn episodes_agree_with_numbers_computed_by_hand() {
        let said = |role: &str| Said {
            role: role.into(),
            name: String::new(),
            content: String::new(),
        };
        let of = |roles: &[&str], ended, calls| {
            let messages = roles.iter().map(|role| said(role)).collect();
            Conversation {
                messages,
                ended,
                calls,
                ..Conversation::default()
            }
        };
        let played = [
            of(&["assistant", "user", "assistant"], true, None),
            of(&["assistant"], false, None),
        ];
        assert_values(
            &episodes(&played),
            &[("environment/turns", 1.5), ("environment/ended", 0.5)],
        );
        let calls = |all, failed| Some(CallCount { all, failed });
        let called = [
            of(&["assistant"], true, calls(3, 1)),
            of(&["assistant"], true, calls(1, 0)),
        ];
        assert_values(
            &episodes(&called)[2..],
            &[
                ("tools/call_frequency", 2.0),
                ("tools/failure_frequency", 0.25),
            ],
        );
        assert_eq!(episodes(&[of(&["assistant"], true, calls(0, 0))])[3].1, 0.0);
        assert!(episodes(&[]).is_empty());
    }

    #[test]
    fn rewards_agree_with_numbers_computed_by_hand() {
        // Groups (2, 0), (1, 1), (3, 3): the batch has mean 5/3 and squared deviations 1/9 + 25/9 +
        // 4/9 + 4/9 + 16/9 + 16/9.
        let scored = Scored {
            total: vec![2.0, 0.0, 1.0, 1.0, 3.0, 3.0],
            per_reward: vec![("exact_match".into(), vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0])],
        };
        assert_values(
            &rewards(&scored, 2),
            &[
                ("reward", 5.0 / 3.0),
                ("reward_std", (66.0f64 / 9.0 / 5.0).sqrt()),
                ("frac_reward_zero_std", 2.0 / 3.0),
                ("rewards/exact_match/mean", 1.0 / 6.0),
                ("rewards/exact_match/std", (1.0f64 / 6.0).sqrt()),
            ],
        );
        let single = Scored {
            total: vec![0.5],
            per_reward: Vec::new(),
        };
        let expected = [
            ("reward", 0.5),
            ("reward_std", 0.0),
            ("frac_reward_zero_std", 1.0),
        ];
        assert_values(&rewards(&single, 1), &expected);
        // The mean of equal numbers is rounded.
        let three = Scored {
            total: vec![0.1; 3],
            per_reward: Vec::new(),
        };
        assert_eq!(rewards(&three, 3)[2].1, 1.0);
    }
}
