//! Kernels with one block per row of logits.

use host_ops::{pick, top_k};

use super::super::plain_stats;
use super::gpu::{Gpu, assert_close, wave};

const TEMPERATURE: f64 = 0.7;

#[test]
fn statistics_and_gradients_of_logits() {
    let Some(gpu) = Gpu::open() else { return };
    let (rows, vocab) = (3, 1000);
    let (logits, targets, d_logps) = (
        wave(rows * vocab, 0.4),
        [999u32, 0, 256],
        [0.3f32, 0.0, -2.0],
    );
    let (on_gpu, targets_on_gpu, d_logps_on_gpu) =
        (gpu.put(&logits), gpu.put(&targets), gpu.put(&d_logps));
    let (mut stats, mut gradient) = (gpu.fresh::<f32>(4 * rows), gpu.fresh::<f32>(rows * vocab));
    let width = vocab as u32;
    launch!(
        gpu,
        "logit_stats_f32",
        rows,
        &on_gpu,
        &targets_on_gpu,
        &mut stats,
        &width,
        &TEMPERATURE
    );
    launch!(
        gpu,
        "logit_gradient_f32",
        rows,
        &on_gpu,
        &targets_on_gpu,
        &d_logps_on_gpu,
        &mut gradient,
        &width,
        &TEMPERATURE
    );
    let (mut expected_stats, mut expected_gradient) = (Vec::new(), Vec::new());
    for (n, row) in logits.chunks_exact(vocab).enumerate() {
        let row: Vec<f64> = row.iter().map(|logit| f64::from(*logit)).collect();
        let target = targets[n] as usize;
        let stats = plain_stats(&row, target, TEMPERATURE);
        expected_stats.extend(stats);
        let weight = f64::from(d_logps[n]) / TEMPERATURE;
        let hit = |v: usize| f64::from(u8::from(v == target));
        let probability = |z: &f64| (z / TEMPERATURE - stats[1]).exp();
        expected_gradient.extend(
            row.iter()
                .enumerate()
                .map(|(v, z)| weight * (hit(v) - probability(z))),
        );
    }
    assert_close("logit_stats", &gpu.get(&stats), &expected_stats, 1e-5);
    assert_close(
        "logit_gradient",
        &gpu.get(&gradient),
        &expected_gradient,
        1e-6,
    );
}

#[test]
fn the_largest_logits_in_order() {
    let Some(gpu) = Gpu::open() else { return };
    let (rows, vocab) = (5, 1500);
    let mut logits = wave(rows * vocab, 0.1);
    // Ties of all kinds: equal rows, few distinct values, both zeros, infinities.
    logits[vocab..2 * vocab].fill(-3.5);
    logits[2 * vocab..3 * vocab]
        .iter_mut()
        .enumerate()
        .for_each(|(i, logit)| *logit = (i * 7 % 5) as f32 - 2.0);
    logits[3 * vocab..4 * vocab]
        .iter_mut()
        .enumerate()
        .for_each(|(i, logit)| *logit = [0.0, -0.0][i % 2]);
    logits[4 * vocab + 7] = f32::INFINITY;
    logits[4 * vocab + 9] = f32::NEG_INFINITY;
    let on_gpu = gpu.put(&logits);
    for k in [1, 2, 50, 300, 600, 1000, 1024] {
        let mut ids = gpu.fresh::<u32>(rows * k);
        launch!(
            gpu,
            "top_ids_f32",
            rows,
            &on_gpu,
            &mut ids,
            &(vocab as u32),
            &(k as u32)
        );
        for (ids, row) in gpu
            .get(&ids)
            .chunks_exact(k)
            .zip(logits.chunks_exact(vocab))
        {
            assert_eq!(ids, top_k(row, k, &mut Vec::new()));
        }
    }
    let mut all = gpu.fresh::<u32>(5 * 9);
    launch!(
        gpu,
        "top_ids_f32",
        5,
        &gpu.put(&logits[..45]),
        &mut all,
        &9u32,
        &9u32
    );
    for (ids, row) in gpu.get(&all).chunks_exact(9).zip(logits.chunks_exact(9)) {
        assert_eq!(ids, top_k(row, 9, &mut Vec::new()));
    }
}

/// Inverts the cumulative distribution in the order of ids.
fn picked(row: &[f32], uniform: f64) -> u32 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let weights: Vec<f64> = row
        .iter()
        .map(|logit| ((f64::from(*logit) - largest) / TEMPERATURE).exp())
        .collect();
    pick(&weights, uniform) as u32
}

#[test]
fn draws_invert_the_cumulative_distribution() {
    let Some(gpu) = Gpu::open() else { return };
    for vocab in [7, 256, 1500] {
        let rows = 40;
        let mut logits = wave(rows * vocab, 0.8);
        let mut uniform: Vec<f64> = (0..rows).map(|row| (0.377 * row as f64).fract()).collect();
        (uniform[1], uniform[2]) = (0.0, 1.0 - f64::EPSILON / 2.0);
        logits[2 * vocab - 1] = -1e30; // a weight of 0 at the end is never drawn
        logits[3 * vocab..3 * vocab + 3].fill(f32::NEG_INFINITY);
        logits[4 * vocab + 5] = f32::NAN;
        logits[5 * vocab + 3] = f32::INFINITY;
        logits[6 * vocab..7 * vocab].fill(f32::NEG_INFINITY);
        let mut ids = gpu.fresh::<u32>(rows);
        launch!(
            gpu,
            "draw_f32",
            rows,
            &gpu.put(&logits),
            &gpu.put(&uniform),
            &mut ids,
            &(vocab as u32),
            &TEMPERATURE
        );
        for (row, id) in gpu.get(&ids).into_iter().enumerate() {
            let expected = if (4..7).contains(&row) {
                u32::MAX
            } else {
                picked(&logits[row * vocab..][..vocab], uniform[row])
            };
            assert_eq!(id, expected, "row {row} of {vocab} logits");
        }
    }
}
