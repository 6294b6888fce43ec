use candle_core::{Device, Tensor};
use host_ops::divergence;
use host_ops::testing::generic;

const VOCAB: usize = 600;
const TEMPERATURE: f64 = 0.8;

fn wave(len: usize, scale: f64, phase: f64) -> Vec<f32> {
    (0..len)
        .map(|i| (scale * (1.7 * i as f64 + phase).sin()) as f32)
        .collect()
}

fn logsumexp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    largest
        + values
            .map(|value| (value - largest).exp())
            .sum::<f64>()
            .ln()
}

/// The divergence from two softmaxes, in f64.
fn dense(logits: &[f32], change: &[f32]) -> f64 {
    let z: Vec<f64> = logits.iter().map(|z| f64::from(*z) / TEMPERATURE).collect();
    let moved: Vec<f64> = z
        .iter()
        .zip(change)
        .map(|(z, d)| z + f64::from(*d) / TEMPERATURE)
        .collect();
    let (before, after) = (
        logsumexp(z.iter().copied()),
        logsumexp(moved.iter().copied()),
    );
    z.iter()
        .zip(&moved)
        .map(|(z, m)| (z - before).exp() * ((z - before) - (m - after)))
        .sum()
}

fn measured(logits: &[f32], change: &[f32]) -> Vec<f64> {
    let tensor = |values: &[f32]| {
        Tensor::from_slice(values, (values.len() / VOCAB, VOCAB), &Device::Cpu).unwrap()
    };
    divergence(&tensor(logits), &tensor(change), TEMPERATURE)
        .unwrap()
        .to_vec1()
        .unwrap()
}

#[test]
fn divergence_is_exact_for_changes_of_every_size() {
    for (scale, reach) in [
        (1e-3, 6.0),
        (0.02, 6.0),
        (0.3, 20.0),
        (4.0, 6.0),
        (60.0, 120.0),
        (2e3, 6.0),
    ] {
        let (logits, change) = (wave(3 * VOCAB, reach, 0.1), wave(3 * VOCAB, scale, 1.9));
        let rows = logits.chunks(VOCAB).zip(change.chunks(VOCAB));
        let expected: Vec<f64> = rows.map(|(logits, change)| dense(logits, change)).collect();
        for (actual, expected) in measured(&logits, &change).iter().zip(&expected) {
            assert!(
                (actual - expected).abs() < 1e-6 * expected,
                "scale {scale}: {actual} {expected}"
            );
        }
        if scale < 600.0 {
            for (actual, expected) in generic(|| measured(&logits, &change)).iter().zip(&expected) {
                assert!(
                    (actual - expected).abs() < 2e-6 * expected,
                    "generic, scale {scale}: {actual} {expected}"
                );
            }
        }
    }
}

#[test]
fn divergence_of_a_tiny_change_is_its_variance() {
    let (logits, change) = (wave(VOCAB, 6.0, 0.1), wave(VOCAB, 1e-3, 1.9));
    let tiny: Vec<f32> = change.iter().map(|d| d * 2.0_f32.powi(-20)).collect();
    let ratio = measured(&logits, &change)[0] / measured(&logits, &tiny)[0];
    assert!((ratio / 2.0_f64.powi(40) - 1.0).abs() < 1e-3, "{ratio}");
}

#[test]
fn a_shift_of_all_logits_has_no_divergence_and_nan_stays_nan() {
    let logits = wave(VOCAB, 6.0, 0.1);
    assert!(measured(&logits, &vec![3.0; VOCAB])[0].abs() < 1e-15);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut change = vec![0.0; VOCAB];
        change[7] = bad;
        assert!(measured(&logits, &change)[0].is_nan());
        assert!(measured(&change, &logits)[0].is_nan());
    }
}
