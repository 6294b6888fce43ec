//! Metrics over several answers to one question: `pass@k` and the majority vote.

use std::collections::HashMap;

/// The unbiased estimate of the probability that at least one of `k` answers is right, from
/// `samples` answers of which `right` are right: 1 - C(samples - right, k) / C(samples, k).
///
/// `k` is at most `samples`.
pub fn pass_at(samples: usize, right: usize, k: usize) -> f64 {
    let wrong = samples.saturating_sub(right);
    if wrong < k {
        return 1.0;
    }
    // C(wrong, k) / C(samples, k), factor by factor, so that no binomial overflows.
    1.0 - (0..k)
        .map(|i| (wrong - i) as f64 / (samples - i) as f64)
        .product::<f64>()
}

/// Index of the first occurrence of the most frequent answer. Of equally frequent answers, the one
/// that occurs first wins. Missing answers do not vote.
pub fn majority(values: &[Option<String>]) -> Option<usize> {
    let mut votes: HashMap<&str, (usize, usize)> = HashMap::new();
    for (place, value) in values.iter().enumerate() {
        if let Some(value) = value {
            votes.entry(value).or_insert((0, place)).0 += 1;
        }
    }
    votes
        .into_values()
        .max_by_key(|(count, place)| (*count, std::cmp::Reverse(*place)))
        .map(|(_, place)| place)
}

/// The values of k for `pass@k`: powers of two up to `samples`, and `samples` itself.
pub fn counts(samples: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |k| Some(k * 2))
        .take_while(|k| *k < samples)
        .collect();
    counts.push(samples);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_at_agrees_with_counted_subsets() {
        assert_eq!(pass_at(4, 0, 2), 0.0);
        assert_eq!(pass_at(4, 4, 2), 1.0);
        assert_eq!(
            pass_at(4, 3, 2),
            1.0,
            "two answers cannot both be the wrong one"
        );
        // 1 - C(3, 2) / C(4, 2) = 1 - 3 / 6
        assert!((pass_at(4, 1, 2) - 0.5).abs() < 1e-15);
        // The expected value is counted over all subsets.
        for (samples, right, k) in [(6, 2, 3), (7, 1, 5), (8, 3, 2)] {
            let subsets: Vec<u32> = (0..1_u32 << samples)
                .filter(|set| set.count_ones() as usize == k)
                .collect();
            let good = subsets
                .iter()
                .filter(|set| **set & ((1 << right) - 1) != 0)
                .count();
            assert!(
                (pass_at(samples, right, k) - good as f64 / subsets.len() as f64).abs() < 1e-12
            );
        }
        assert!((pass_at(1_000_000, 500_000, 100_000) - 1.0).abs() < 1e-12);
        for right in 0..=8 {
            assert!(
                (pass_at(8, right, 1) - right as f64 / 8.0).abs() < 1e-15,
                "pass@1 is the mean"
            );
        }
    }

    #[test]
    fn the_majority_is_the_first_of_the_most_frequent() {
        let values = |list: &[&str]| {
            list.iter()
                .map(|v| (!v.is_empty()).then(|| (*v).to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(majority(&values(&["1", "2", "2"])), Some(1));
        assert_eq!(
            majority(&values(&["3", "1", "1", "3"])),
            Some(0),
            "ties go to the first"
        );
        assert_eq!(
            majority(&values(&["", "", "", "7"])),
            Some(3),
            "no answer is no vote"
        );
        assert_eq!(majority(&values(&["", ""])), None);
    }

    #[test]
    fn counts_are_powers_of_two_and_the_total() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
    }
}
