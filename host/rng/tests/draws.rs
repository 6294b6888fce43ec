//! The draws of named streams, against values computed elsewhere and against their distributions.

use host_rng::{below, fill_standard_normal, permutation, stream, uniform};
use rand::Rng;

fn first(seed: u64, name: &str, index: &[u64]) -> u64 {
    stream(seed, name, index).next_u64()
}

#[test]
fn a_stream_is_a_function_of_its_key() {
    assert_eq!(
        first(7, "data.order", &[1, 2]),
        first(7, "data.order", &[1, 2])
    );
    // Computed independently of this file, with SHA-256 and ChaCha12 written in Python. Resumed
    // runs rely on these values.
    assert_eq!(first(0, "model.init", &[]), 646263168085199674);
    assert_eq!(first(7, "rollout.sample", &[3, 1]), 9562547723292799238);
}

#[test]
fn streams_differ_in_every_part_of_their_key() {
    let keys: [(u64, &str, &[u64]); 9] = [
        (0, "a", &[]),
        (1, "a", &[]),
        (0, "b", &[]),
        (0, "ab", &[]),
        (0, "a", &[0]),
        (0, "a", &[0, 0]),
        (0, "a", &[1, 0]),
        (0, "a", &[0, 1]),
        (0, "a\0\0\0\0\0\0\0\0", &[]),
    ];
    let draws: std::collections::BTreeSet<u64> = keys
        .iter()
        .map(|(seed, name, index)| first(*seed, name, index))
        .collect();
    assert_eq!(draws.len(), keys.len());
}

#[test]
fn uniform_stays_in_range_and_has_the_right_mean() {
    let mut rng = stream(1, "test", &[]);
    let draws: Vec<f64> = (0..100_000).map(|_| uniform(&mut rng)).collect();
    assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
    let mean = draws.iter().sum::<f64>() / draws.len() as f64;
    assert!((mean - 0.5).abs() < 0.005, "mean {mean}");
}

#[test]
fn below_covers_its_range_evenly() {
    let mut rng = stream(2, "test", &[]);
    let mut counts = [0u32; 7];
    for _ in 0..70_000 {
        counts[below(&mut rng, 7) as usize] += 1;
    }
    assert!(
        counts.iter().all(|count| (9_500..10_500).contains(count)),
        "{counts:?}"
    );
    assert_eq!(below(&mut rng, 0), 0);
    assert_eq!(below(&mut rng, 1), 0);
}

#[test]
fn normal_draws_have_standard_moments() {
    let mut draws = vec![0f32; 100_001];
    fill_standard_normal(&mut stream(3, "test", &[]), &mut draws);
    let moment = |power: i32| {
        draws
            .iter()
            .map(|draw| f64::from(*draw).powi(power))
            .sum::<f64>()
            / draws.len() as f64
    };
    assert!(moment(1).abs() < 0.015, "{}", moment(1));
    assert!((moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
    assert!(moment(3).abs() < 0.05, "{}", moment(3));
    assert!((moment(4) - 3.0).abs() < 0.15, "{}", moment(4));
    let products = draws
        .chunks_exact(2)
        .map(|pair| f64::from(pair[0] * pair[1]));
    let correlation = products.sum::<f64>() / (draws.len() / 2) as f64;
    assert!(
        correlation.abs() < 0.02,
        "the halves of a pair depend on each other: {correlation}"
    );
}

#[test]
fn a_shorter_fill_begins_a_longer_one() {
    let (mut short, mut long) = (vec![0f32; 5], vec![0f32; 8]);
    fill_standard_normal(&mut stream(3, "test", &[]), &mut short);
    fill_standard_normal(&mut stream(3, "test", &[]), &mut long);
    assert_eq!(short, long[..5]);
}

#[test]
fn permutations_are_complete_uniform_and_repeatable() {
    let order = permutation(&mut stream(4, "test", &[]), 100);
    assert_eq!(order, permutation(&mut stream(4, "test", &[]), 100));
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    let mut counts = std::collections::BTreeMap::new();
    for index in 0..6_000 {
        *counts
            .entry(permutation(&mut stream(4, "test", &[index]), 3))
            .or_insert(0u32) += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(
        counts.values().all(|count| (850..1150).contains(count)),
        "{counts:?}"
    );
    assert!(permutation(&mut stream(4, "test", &[]), 0).is_empty());
}
