//! Dynamic sampling (DAPO): groups whose completions all earn the same carry no signal. They are
//! dropped, and others sampled.

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
    /// Number of groups in the rollout whose rewards do not differ; they fill it up after the last
    /// call.
    pub without_difference: u64,
    /// Mean reward of all sampled completions, including those of dropped groups.
    pub reward: f64,
}

/// Collects `wanted` groups whose rewards differ, as `differs` finds. Calls `draw` at most
/// `most_batches` times, each time for the number of missing prompts.
///
/// If too few groups differ, the first of the other groups fill the rollout up.
pub(super) fn fill(
    wanted: u64,
    most_batches: usize,
    differs: impl Fn(&Group) -> bool,
    mut draw: impl FnMut(u64) -> Result<Vec<Group>>,
) -> Result<Filled> {
    let (mut groups, mut others) = (Vec::new(), Vec::new());
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
    let all = || groups.iter().chain(&others);
    let rewards = || all().flat_map(|group| &group.rewards.total);
    filtered.reward =
        rewards().map(|&reward| f64::from(reward)).sum::<f64>() / rewards().count().max(1) as f64;
    let tokens = all().map(Group::tokens).sum();
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
        let (mut next, mut calls) = (0, Vec::new());
        let differs = |group: &Group| group.rewards.differ(&[], false);
        let filled = fill(wanted, most, differs, |count| {
            calls.push(count);
            next += count;
            Ok((next - count..next)
                .map(|number| group(number, informative))
                .collect())
        });
        let filled = filled.unwrap();
        (
            filled.groups.iter().map(|group| group.number).collect(),
            calls,
            filled.filtered,
        )
    }

    #[test]
    fn others_are_sampled_in_the_place_of_those_that_say_nothing() {
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
    fn at_the_limit_the_first_of_the_others_follow() {
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
