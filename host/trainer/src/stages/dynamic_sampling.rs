//! Dynamic sampling (DAPO). A group whose completions all earn the same reward teaches nothing. It
//! is dropped, and another group is sampled in its place.

use anyhow::Result;

use super::context::Group;

/// The groups of a rollout, and the cost of sampling them.
pub(super) struct Filled {
    pub groups: Vec<Group>,
    /// Number of prompt and completion tokens, including those of dropped groups.
    pub tokens: u64,
    pub filtered: Filtered,
}

/// The record of dynamic sampling in one rollout.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Filtered {
    /// Number of calls that sampled completions.
    pub batches: u64,
    /// Number of sampled groups that are not in the rollout.
    pub dropped: u64,
    /// Number of groups in the rollout whose rewards do not differ. They fill up the rollout if the
    /// last call left groups missing.
    pub without_difference: u64,
    /// Mean reward of all sampled completions, including those of dropped groups.
    pub reward: f64,
}

/// Collects `wanted` groups for which `differs` returns true. Calls `draw` at most `most_batches`
/// times, each time with the number of prompts that are still missing.
///
/// If there are too few such groups, the first of the other groups fill up the rollout.
pub(super) fn fill(
    wanted: u64,
    most_batches: usize,
    differs: impl Fn(&Group) -> bool,
    mut draw: impl FnMut(u64) -> Result<Vec<Group>>,
) -> Result<Filled> {
    let mut groups = Vec::new();
    let mut others = Vec::new();
    let mut filtered = Filtered::default();
    for _ in 0..most_batches {
        let missing = wanted - groups.len() as u64;
        if missing == 0 {
            break;
        }
        let (differ, same): (Vec<_>, Vec<_>) = draw(missing)?.into_iter().partition(&differs);
        groups.extend(differ);
        others.extend(same);
        filtered.batches += 1;
    }
    let mut tokens = 0;
    let mut rewards = 0.0;
    let mut count = 0_u64;
    for group in groups.iter().chain(&others) {
        tokens += group.tokens();
        for &reward in &group.rewards.total {
            rewards += f64::from(reward);
            count += 1;
        }
    }
    filtered.reward = rewards / count.max(1) as f64;
    let dropped = others.split_off((wanted as usize - groups.len()).min(others.len()));
    filtered.without_difference = others.len() as u64;
    filtered.dropped = dropped.len() as u64;
    groups.extend(others);
    Ok(Filled {
        groups,
        tokens,
        filtered,
    })
}

#[cfg(test)]
mod tests {
    use host_data::Example;

    use super::*;
    use crate::reward::Scored;

    /// A group with the prompt number `number`; its rewards differ if `informative` contains the
    /// number.
    fn group(number: u64, informative: &[u64]) -> Group {
        let text = String::new;
        let example = Example {
            prompt: text(),
            answer: text(),
            solution: None,
            reply: None,
            columns: text(),
            row: None,
        };
        let total = if informative.contains(&number) {
            vec![0.0, 1.0]
        } else {
            vec![1.0, 1.0]
        };
        let rewards = Scored {
            total,
            per_reward: Vec::new(),
        };
        Group {
            number,
            example,
            prompt_ids: vec![],
            completions: vec![],
            texts: vec![],
            conversations: vec![],
            rewards,
        }
    }

    /// Numbers of the groups in the rollout, number of prompts in each call, and the metrics.
    fn filled(wanted: u64, most: usize, informative: &[u64]) -> (Vec<u64>, Vec<u64>, Filtered) {
        let mut next = 0;
        let mut calls = Vec::new();
        let draw = |count| {
            calls.push(count);
            let numbers = next..next + count;
            next += count;
            Ok(numbers.map(|number| group(number, informative)).collect())
        };
        let differs = |group: &Group| group.rewards.differ(&[], false);
        let filled = fill(wanted, most, differs, draw).unwrap();
        let numbers = filled.groups.iter().map(|group| group.number).collect();
        (numbers, calls, filled.filtered)
    }

    #[test]
    fn samples_other_groups_for_those_without_a_difference() {
        let (groups, calls, filtered) = filled(3, 10, &[1, 4, 6]);
        assert_eq!((groups, calls), (vec![1, 4, 6], vec![3, 2, 1, 1]));
        let expected = Filtered {
            batches: 4,
            dropped: 4,
            without_difference: 0,
            reward: 5.5 / 7.0,
        };
        assert_eq!(filtered, expected);
    }

    #[test]
    fn fills_up_with_the_first_other_groups_at_the_limit() {
        let (groups, calls, filtered) = filled(4, 2, &[2, 5]);
        assert_eq!((groups, calls), (vec![2, 5, 0, 1], vec![4, 3]));
        assert_eq!(
            (
                filtered.batches,
                filtered.dropped,
                filtered.without_difference
            ),
            (2, 3, 2)
        );
        let (groups, calls, filtered) = filled(2, 1, &[0, 1]);
        assert_eq!((groups, calls), (vec![0, 1], vec![2]));
        assert_eq!((filtered.dropped, filtered.without_difference), (0, 0));
    }
}
