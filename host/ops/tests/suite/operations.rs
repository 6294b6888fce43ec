//! The fused operations in f64 against plain formulas, and their backward passes against central
//! differences.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use host_ops::{self as ops, Frequencies, HeadSizes, Packing, Rope, RopeTable, TokenCotangents};

use super::{plain_stats, wave};

/// Largest accepted difference between a derivative and its central difference, relative to the
/// largest derivative.
const TOLERANCE: f64 = 1e-6;

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The derivatives of what the checks differentiate, `sum(output * cotangent)`; they tell all
/// outputs apart.
fn cotangent(output: &Tensor) -> Tensor {
    wave(output.dims(), 0.5)
}

/// Central differences of `value` by every element of `input`.
fn differences(input: &Tensor, value: impl Fn(&Tensor) -> f64) -> Vec<f64> {
    let (shape, start, eps) = (input.dims().to_vec(), values(input), 1e-5);
    let at = |i: usize, shift: f64| {
        let mut moved = start.clone();
        moved[i] += shift;
        value(&Tensor::from_vec(moved, shape.as_slice(), &Device::Cpu).unwrap())
    };
    (0..start.len())
        .map(|i| (at(i, eps) - at(i, -eps)) / (2.0 * eps))
        .collect()
}

fn assert_close(what: &str, actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0f64, |max, x| max.max(x.abs()));
    let worst = actual
        .iter()
        .zip(expected)
        .map(|(a, e)| (a - e).abs())
        .fold(0.0, f64::max)
        / scale;
    println!("{what}: {worst:.1e}");
    assert!(worst < TOLERANCE, "{what}: relative difference {worst:e}");
}

/// Compares `gradients`, those by each of the inputs for the cotangent, with central differences of
/// `op`.
fn check_backward(
    name: &str,
    inputs: &[Tensor],
    op: impl Fn(&[Tensor]) -> Tensor,
    gradients: &[Tensor],
) {
    for (i, gradient) in gradients.iter().enumerate() {
        let numeric = differences(&inputs[i], |moved| {
            let mut inputs = inputs.to_vec();
            inputs[i] = moved.clone();
            let output = op(&inputs);
            (&output * cotangent(&output))
                .unwrap()
                .sum_all()
                .unwrap()
                .to_scalar()
                .unwrap()
        });
        assert_close(&format!("{name}, input {i}"), &values(gradient), &numeric);
    }
}

#[test]
fn rms_norm() {
    let (x, weight, eps) = (wave(&[2, 3, 10], 0.0), wave(&[10], 2.0), 1e-3);
    let mean = x.sqr().unwrap().mean_keepdim(2).unwrap();
    let rms = (mean + eps).unwrap().sqrt().unwrap();
    let plain = x
        .broadcast_div(&rms)
        .unwrap()
        .broadcast_mul(&weight)
        .unwrap();
    assert_close(
        "rms_norm forward",
        &values(&ops::rms_norm(&x, &weight, eps).unwrap()),
        &values(&plain),
    );
    let (dx, d_weight) = ops::rms_norm_backward(&x, &weight, &cotangent(&x), eps, None).unwrap();
    check_backward(
        "rms_norm",
        &[x, weight],
        |t| ops::rms_norm(&t[0], &t[1], eps).unwrap(),
        &[dx, d_weight],
    );
}

#[test]
fn add_bias() {
    let (x, bias) = (wave(&[4, 3, 5], 0.0), wave(&[5], 2.0));
    let plain = x.broadcast_add(&bias).unwrap();
    assert_close(
        "add_bias forward",
        &values(&ops::add_bias(&x, &bias).unwrap()),
        &values(&plain),
    );
    let gradients = [cotangent(&x), ops::sum_rows(&cotangent(&x)).unwrap()];
    check_backward(
        "add_bias",
        &[x, bias],
        |t| ops::add_bias(&t[0], &t[1]).unwrap(),
        &gradients,
    );
}

#[test]
fn swiglu() {
    let (gate, up) = (wave(&[3, 107], 0.0), wave(&[3, 107], 2.0));
    let plain = (gate.silu().unwrap() * &up).unwrap();
    assert_close(
        "swiglu forward",
        &values(&ops::swiglu(&gate, &up).unwrap()),
        &values(&plain),
    );
    let (d_gate, d_up) = ops::swiglu_backward(&gate, &up, &cotangent(&gate)).unwrap();
    check_backward(
        "swiglu",
        &[gate, up],
        |t| ops::swiglu(&t[0], &t[1]).unwrap(),
        &[d_gate, d_up],
    );
}

#[test]
fn rope() {
    let (heads, width, tokens) = (3, 8, 5);
    let table = Arc::new(RopeTable::new(9, &Frequencies::new(width, 100.0)));
    let rope = Rope::new(table, [0, 2], 1);
    let x = wave(&[2, tokens, heads * width], 0.0);
    let (input, output) = (values(&x), values(&rope.apply(&x, heads).unwrap()));
    let mut expected = Vec::new();
    for (row, start) in [0i64, 2].into_iter().enumerate() {
        for (head, token) in (0..heads).flat_map(|head| (0..tokens).map(move |token| (head, token)))
        {
            let x = &input[((row * tokens + token) * heads + head) * width..][..width];
            let position = (1 + token as i64 - start).max(0) as f64;
            for i in 0..width {
                let angle = position / 100f64.powf(2.0 * (i % 4) as f64 / width as f64);
                let other = if i < 4 { -x[i + 4] } else { x[i - 4] };
                expected.push(x[i] * angle.cos() + other * angle.sin());
            }
        }
    }
    // The table holds 32-bit floats.
    let worst = output
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    assert!(worst < 2e-6, "{worst:e}");
    let gradient = rope
        .backward(&wave(&[2, heads, tokens, width], 0.5))
        .unwrap();
    check_backward(
        "rope",
        &[x],
        |t| rope.apply(&t[0], heads).unwrap(),
        &[gradient],
    );
}

#[test]
fn attention() {
    // A prompt of three tokens with completions of two, one and none, one of one with one of two,
    // and one alone.
    let stems: [(usize, &[usize]); 3] = [(3, &[2, 1, 0]), (1, &[2]), (2, &[])];
    let (packing, sizes) = (
        Packing::new(stems),
        HeadSizes {
            heads: 4,
            kv_heads: 2,
            width: 3,
        },
    );
    let read: [&[usize]; 11] = [
        &[0],
        &[0, 1],
        &[0, 1, 2],
        &[0, 1, 2, 3],
        &[0, 1, 2, 3, 4],
        &[0, 1, 2, 5],
        &[6],
        &[6, 7],
        &[6, 7, 8],
        &[9],
        &[9, 10],
    ];
    assert_eq!(packing.rows(), read.len());
    let inputs =
        [(12, 0.0), (6, 1.0), (6, 2.0)].map(|(width, phase)| wave(&[read.len(), width], phase));
    let [queries, keys, mixed] = inputs.each_ref().map(values);
    let mut expected = vec![0.0; queries.len()];
    for (at, out) in expected.chunks_exact_mut(3).enumerate() {
        let (row, head) = (at / 4, at % 4 / 2);
        let part = |all: &[f64], key: usize, i: usize| all[(2 * key + head) * 3 + i];
        let score = |key: usize| {
            (0..3)
                .map(|i| queries[at * 3 + i] * part(&keys, key, i))
                .sum::<f64>()
                / 3f64.sqrt()
        };
        let sum: f64 = read[row].iter().map(|key| score(*key).exp()).sum();
        for (i, out) in out.iter_mut().enumerate() {
            *out = read[row]
                .iter()
                .map(|key| score(*key).exp() / sum * part(&mixed, *key, i))
                .sum();
        }
    }
    let run = |t: &[Tensor]| ops::attention([&t[0], &t[1], &t[2]], &packing, sizes).unwrap();
    let output = run(&inputs);
    assert_close("attention forward", &values(&output), &expected);
    let gradients =
        ops::attention_backward(inputs.each_ref(), &cotangent(&output), &packing, sizes).unwrap();
    check_backward("attention", &inputs, run, &gradients);
    let other = Packing::new([(3, [].as_slice())]);
    assert!(
        ops::attention(inputs.each_ref(), &other, sizes).is_err(),
        "other rows do not fit"
    );
}

#[test]
fn logit_stats() {
    let (logits, temperature) = (wave(&[4, 700], 0.0), 0.6);
    let targets = Tensor::new(&[3u32, 0, 699, 257], &Device::Cpu).unwrap();
    let actual = values(&ops::logit_stats(&logits, &targets, temperature).unwrap());
    let mut expected = Vec::new();
    for (row, target) in values(&logits).chunks_exact(700).zip([3, 0, 699, 257]) {
        expected.extend(plain_stats(row, target, temperature));
    }
    assert_close("logit_stats", &actual, &expected);
    let outside = Tensor::new(&[3u32, 0, 700, 257], &Device::Cpu).unwrap();
    let error = ops::logit_stats(&logits, &outside, temperature)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("token id 700 is outside the vocabulary of 700"),
        "{error}"
    );
}

#[test]
fn gradients_of_log_probabilities_and_entropies() {
    let (hidden, head, temperature) = (wave(&[6, 5], 0.0), wave(&[9, 5], 2.0), 0.8);
    let targets = Tensor::new(&[3u32, 0, 8, 5, 5, 1], &Device::Cpu).unwrap();
    // A derivative of 0 marks a token that takes no part.
    let d_logps = Tensor::new(&[0.3f64, -1.0, 0.0, 2.0, 0.7, -0.2], &Device::Cpu).unwrap();
    let d_entropy = Tensor::new(&[-0.5f64, 0.0, 1.5, 0.4, -2.0, 0.9], &Device::Cpu).unwrap();
    for d_entropy in [None, Some(&d_entropy)] {
        let value = |hidden: &Tensor, head: &Tensor| {
            let logits = hidden.matmul(&head.t().unwrap()).unwrap();
            let stats = ops::logit_stats(&logits, &targets, temperature).unwrap();
            let sum = |column, weights: &Tensor| {
                let of_rows = stats.narrow(1, column, 1).unwrap().squeeze(1).unwrap();
                (of_rows * weights)
                    .unwrap()
                    .sum_all()
                    .unwrap()
                    .to_scalar::<f64>()
                    .unwrap()
            };
            sum(0, &d_logps) + d_entropy.map_or(0.0, |d_entropy| sum(2, d_entropy))
        };
        let loss = TokenCotangents {
            targets: &targets,
            d_logps: &d_logps,
            d_entropy,
            temperature,
            truncation: None,
        };
        let (d_hidden, d_head) = ops::token_logps_vjp(&hidden, &head, &loss).unwrap();
        assert_eq!(d_head.dtype(), DType::F64);
        assert_close(
            "d_hidden",
            &values(&d_hidden),
            &differences(&hidden, |moved| value(moved, &head)),
        );
        assert_close(
            "d_head",
            &values(&d_head),
            &differences(&head, |moved| value(&hidden, moved)),
        );
        let alone = ops::token_logps_by_hidden(&hidden, &head, &loss).unwrap();
        assert_eq!(values(&alone), values(&d_hidden));
    }
}

/// The logits of 838 tokens exist at a time, and the head's gradient by them is added in strips of
/// 4,096 rows.
#[test]
fn the_heads_gradient_is_the_sum_over_chunks_and_strips() {
    let (tokens, vocab, chunk) = (1700, 5000, ops::chunk_rows(5000, &Device::Cpu));
    let f32 = |x: Tensor| x.to_dtype(DType::F32).unwrap();
    let (hidden, head, d_logps) = (
        f32(wave(&[tokens, 3], 0.0)),
        f32(wave(&[vocab, 3], 2.0)),
        f32(wave(&[tokens], 1.0)),
    );
    let targets = Tensor::from_iter(
        (0..tokens as u32).map(|i| i * 7 % vocab as u32),
        &Device::Cpu,
    )
    .unwrap();
    let d_head = |from: usize, len: usize| {
        let part = |x: &Tensor| x.narrow(0, from, len).unwrap();
        let (targets, d_logps) = (part(&targets), part(&d_logps));
        let loss = TokenCotangents {
            targets: &targets,
            d_logps: &d_logps,
            d_entropy: None,
            temperature: 1.0,
            truncation: None,
        };
        ops::token_logps_vjp(&part(&hidden), &head, &loss)
            .unwrap()
            .1
    };
    assert!(chunk < tokens && ops::STRIP < vocab);
    let parts = (0..tokens)
        .step_by(chunk)
        .map(|from| d_head(from, chunk.min(tokens - from)));
    let sum = parts.reduce(|sum, part| (sum + part).unwrap()).unwrap();
    let farthest = (d_head(0, tokens) - &sum)
        .unwrap()
        .abs()
        .unwrap()
        .max_all()
        .unwrap()
        .to_scalar::<f32>()
        .unwrap();
    let largest = sum
        .abs()
        .unwrap()
        .max_all()
        .unwrap()
        .to_scalar::<f32>()
        .unwrap();
    assert!(
        largest > 0.1 && farthest < 1e-6 * largest,
        "{farthest} of {largest}"
    );
}

#[test]
fn refuses_shapes_that_do_not_fit() {
    let x = wave(&[2, 6], 0.0);
    assert!(ops::rms_norm(&x, &wave(&[5], 0.0), 1e-6).is_err());
    assert!(ops::add_bias(&x, &wave(&[5], 0.0)).is_err());
    assert!(ops::swiglu(&x, &wave(&[2, 5], 0.0)).is_err());
    let rope = Rope::new(
        Arc::new(RopeTable::new(2, &Frequencies::new(6, 1e4))),
        [0],
        0,
    );
    assert!(rope.apply(&wave(&[1, 3, 6], 0.0), 1).is_err());
}
