//! Compares the compositions in `generic` with the fused kernels, which have tests of their own.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use host_ops::testing::{GENERIC, distance, generic};
use host_ops::*;

fn wave(shape: &[usize], phase: f64, dtype: DType) -> Tensor {
    super::wave(shape, phase).to_dtype(dtype).unwrap()
}

const SHAPE: [usize; 3] = [2, 5, 12];
const STARTS: [usize; 2] = [0, 3];

fn rope() -> Rope {
    Rope::new(
        Arc::new(RopeTable::new(9, &Frequencies::new(6, 100.0))),
        STARTS,
        2,
    )
}

/// Every operation forward and backward, on inputs of `dtype` that hold bf16 values.
fn all(dtype: DType) -> Vec<(&'static str, Tensor)> {
    let wave = |shape: &[usize], phase| wave(shape, phase, DType::BF16).to_dtype(dtype).unwrap();
    let (x, y, grad) = (wave(&SHAPE, 0.1), wave(&SHAPE, 0.7), wave(&SHAPE, 1.9));
    let weight = wave(&[12], 0.4);
    let (dx, d_norm) = rms_norm_backward(&x, &weight, &grad, 1e-6, None).unwrap();
    let (d_gate, d_up) = swiglu_backward(&x, &y, &grad).unwrap();
    let (rope, turned) = (rope(), wave(&[2, 2, 5, 6], 0.3));
    let mut all = vec![
        ("add", add(&x, &y).unwrap()),
        ("add_bias", add_bias(&x, &weight).unwrap()),
        ("rms_norm", rms_norm(&x, &weight, 1e-6).unwrap()),
        ("rms_norm by x", dx),
        ("rms_norm by weight", d_norm),
        ("swiglu", swiglu(&x, &y).unwrap()),
        ("swiglu by gate", d_gate),
        ("swiglu by up", d_up),
        ("rope", rope.apply(&x, 2).unwrap()),
        ("rope backward", rope.backward(&turned).unwrap()),
    ];
    // candle has no products in bf16 on the CPU, and attention has no compositions.
    if !GENERIC.get() {
        all.push(("sum_rows", sum_rows(&x).unwrap()));
        all.extend(attended(wave));
    }
    all
}

/// Attention, forward and backward, in which prompts and completions are longer and shorter than a
/// block of queries.
fn attended(wave: impl Fn(&[usize], f64) -> Tensor) -> [(&'static str, Tensor); 4] {
    let stems: [(usize, &[usize]); 3] = [
        (3, &[BLOCK + 22, 2, 0, BLOCK + 2]),
        (BLOCK + 12, &[1, 5]),
        (2, &[]),
    ];
    let (packing, sizes) = (
        Packing::new(stems),
        HeadSizes {
            heads: 4,
            kv_heads: 2,
            width: 6,
        },
    );
    let rows = packing.rows();
    let [queries, keys, values] =
        [(24, 0.1), (12, 0.5), (12, 0.9)].map(|(width, phase)| wave(&[rows, width], phase));
    let heads = [&queries, &keys, &values];
    let mixed = attention(heads, &packing, sizes).unwrap();
    let [by_queries, by_keys, by_values] =
        attention_backward(heads, &wave(&[rows, 24], 1.3), &packing, sizes).unwrap();
    [
        ("attention", mixed),
        ("attention by queries", by_queries),
        ("attention by keys", by_keys),
        ("attention by values", by_values),
    ]
}

fn compare(
    actual: Vec<(&'static str, Tensor)>,
    expected: Vec<(&'static str, Tensor)>,
    tolerance: f64,
) {
    for ((name, actual), (_, expected)) in actual.into_iter().zip(expected) {
        let distance = distance(&actual, &expected);
        println!("{name}: {distance:.1e}");
        assert!(distance < tolerance, "{name} differs by {distance:e}");
    }
}

#[test]
fn compositions_equal_the_fused_kernels() {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        compare(generic(|| all(dtype)), all(dtype), tolerance);
    }
}

#[test]
fn bf16_results_differ_from_f32_by_rounding_only() {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 1.0 / 64.0)] {
        for rounded in [all(dtype), generic(|| all(dtype))] {
            assert!(rounded.iter().all(|(_, tensor)| tensor.dtype() == dtype));
            compare(rounded, all(DType::F64), tolerance);
        }
    }
}

/// A cache after an append, and attention over it; of three rows, 2 takes two new tokens and 0
/// takes one.
fn decode(dtype: DType) -> Vec<(&'static str, Tensor)> {
    let wave = |shape: &[usize], phase| wave(shape, phase, DType::BF16).to_dtype(dtype).unwrap();
    let rows = DecodeRows::new(vec![2, 0, 2], vec![1, 3, 2]);
    let (keys, values) = (wave(&[3, 2, 6, 4], 0.1), wave(&[3, 2, 6, 4], 0.6));
    append_to_cache(&keys, &wave(&[3, 2, 1, 4], 0.8), &rows).unwrap();
    let mixed = decode_attention(&wave(&[3, 16], 0.5), &keys, &values, &rows).unwrap();
    vec![("append_to_cache", keys), ("decode_attention", mixed)]
}

#[test]
fn rows_are_added_by_id() {
    let (rows, ids) = (wave(&[6, 3], 0.6, DType::F32), [5u32, 2, 0, 5, 1, 2]);
    let sums = || add_rows(wave(&[7, 3], 0.1, DType::F32), &ids, &rows, Some(1)).unwrap();
    let expected = sums();
    compare(
        vec![("add_rows", generic(sums))],
        vec![("add_rows", expected.clone())],
        1e-6,
    );
    let (start, added) = (
        wave(&[7, 3], 0.1, DType::F32),
        (rows.get(0).unwrap() + rows.get(3).unwrap()).unwrap(),
    );
    assert!(
        distance(
            &expected.get(5).unwrap(),
            &(start.get(5).unwrap() + added).unwrap()
        ) < 1e-6
    );
    assert_eq!(
        distance(&expected.get(1).unwrap(), &start.get(1).unwrap()),
        0.0,
        "the padding gets nothing"
    );
}

#[test]
fn decoding_by_compositions_equals_the_fused_kernels() {
    compare(generic(|| decode(DType::F32)), decode(DType::F32), 1e-5);
    compare(decode(DType::BF16), decode(DType::F32), 1.0 / 64.0);
}

/// The statistics of logits, and the gradients of a weighted sum of log-probabilities.
fn logps(dtype: DType) -> Vec<(&'static str, Tensor)> {
    let wave = |shape: &[usize], phase| wave(shape, phase, dtype);
    let (hidden, head) = (wave(&[6, 4], 0.1), (wave(&[300, 4], 0.9) * 3.0).unwrap());
    let targets = Tensor::new(&[3u32, 0, 299, 257, 8, 8], &Device::Cpu).unwrap();
    let d_logps = &Tensor::new(&[0.3f32, -1.0, 0.0, 2.0, 0.7, -0.2], &Device::Cpu)
        .unwrap()
        .to_dtype(dtype)
        .unwrap();
    let logits = hidden.matmul(&head.t().unwrap()).unwrap();
    let loss = TokenCotangents {
        targets: &targets,
        d_logps,
        d_entropy: None,
        temperature: 0.7,
        truncation: None,
    };
    let (d_hidden, d_head) = token_logps_vjp(&hidden, &head, &loss).unwrap();
    let stats = logit_stats(&logits, &targets, 0.7).unwrap();
    vec![
        ("logit_stats", stats),
        ("logps by hidden", d_hidden),
        ("logps by head", d_head),
    ]
}

#[test]
fn log_probabilities_by_compositions_equal_the_fused_kernels() {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        compare(generic(|| logps(dtype)), logps(dtype), tolerance);
    }
}

#[test]
fn the_largest_logits_come_in_order() {
    let logits = Tensor::new(
        &[
            [1.0f32, 3.0, 3.0, 2.0, 3.0],
            [-1.0, -7.0, 0.0, -0.0, f32::MIN],
        ],
        &Device::Cpu,
    )
    .unwrap();
    let ids = |k| top_ids(&logits, k).unwrap().to_vec2::<u32>().unwrap();
    assert_eq!(ids(2), [[1, 2], [2, 3]]);
    assert_eq!(ids(5), [[1, 2, 4, 3, 0], [2, 3, 0, 1, 4]]);
    assert!(top_ids(&logits, 6).is_err());
}

/// Two rows are more than compositions take at a time. The second has what it has alone.
#[test]
fn rows_of_many_logits_do_not_depend_on_each_other() {
    let (vocab, f32) = ((1 << 21) + 1, DType::F32);
    let (hidden, head) = (wave(&[2, 1], 0.1, f32), wave(&[vocab, 1], 0.9, f32));
    let (targets, d) = (
        Tensor::new(&[7u32, 0], &Device::Cpu).unwrap(),
        wave(&[2], 0.5, f32),
    );
    let of = |from, len| {
        let [hidden, targets, d] = [&hidden, &targets, &d].map(|x| x.narrow(0, from, len).unwrap());
        let logits = hidden.matmul(&head.t().unwrap()).unwrap();
        let truncation = Truncation {
            temperature: 0.7,
            top_k: 5,
            top_p: 1.0,
        };
        let loss = TokenCotangents {
            targets: &targets,
            d_logps: &d,
            d_entropy: Some(&d),
            temperature: 0.7,
            truncation: None,
        };
        let by_hidden = token_logps_by_hidden(&hidden, &head, &loss).unwrap();
        let divergence = divergence(&logits, &(&logits * 0.1).unwrap(), 0.7)
            .unwrap()
            .to_dtype(f32)
            .unwrap();
        let truncated = truncate(&logits, &targets, truncation).unwrap();
        let left = truncated
            .gt(-1e29f32)
            .unwrap()
            .to_dtype(f32)
            .unwrap()
            .sum(1)
            .unwrap();
        Tensor::stack(&[by_hidden.flatten_all().unwrap(), divergence, left], 1)
            .unwrap()
            .to_vec2::<f32>()
            .unwrap()
    };
    assert_eq!(generic(|| of(0, 2))[1..], generic(|| of(1, 1)));
}
