//! Each operation against plain formulas, its compositions and central differences; the CUDA
//! kernels against plain formulas in f64: on a real device where `CAPO_TEST_DEVICE` is `cuda`, else
//! on the CPU, by an emulated driver.
//!
//! None of the tests lie in the crate, whose numeric code takes half a minute to build: it would be
//! built a second time for them.

use candle_core::{Device, Tensor};

mod bf16;
/// The name by which tests that need a device are found.
mod cuda {
    #[macro_use]
    mod gpu;
    mod attention;
    mod decode;
    mod layers;
    mod logits;
    mod optimizer;
}
mod divergence;
mod draw;
mod generic;
mod kernel;
mod operations;
mod product;
mod tile;
mod truncate;

/// Numbers without a period.
fn wave(shape: &[usize], phase: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| 1.3 * (1.7 * i as f64 + phase).sin() + 0.2 * (0.3 * i as f64).cos();
    Tensor::from_vec((0..count).map(value).collect(), shape, &Device::Cpu).unwrap()
}

/// A row's `logit_stats` by plain formulas.
fn plain_stats(row: &[f64], target: usize, temperature: f64) -> [f64; 4] {
    let scaled: Vec<f64> = row.iter().map(|logit| logit / temperature).collect();
    let logsumexp = scaled.iter().map(|z| z.exp()).sum::<f64>().ln();
    let entropy: f64 = scaled
        .iter()
        .map(|z| -(z - logsumexp).exp() * (z - logsumexp))
        .sum();
    [scaled[target] - logsumexp, logsumexp, entropy, row[target]]
}
