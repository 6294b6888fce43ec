//! Prints the time of a decoding step, and the least time that the machine allows:
//! `cargo bench -p host-model --bench decode [-- ROWS CONTEXT]`.
//!
//! The least time is the longer of two: to read weights and cache once at the bandwidth of a sum
//! over as many bytes, and to compute the step at the rate of the matrix library's product of 1,024
//! rows. Both are measured on as many threads as the steps have.

mod common;

use std::hint::black_box;

use candle_core::{Device, Tensor};
use common::{fresh, generate};
use host_model::Policy;
use rayon::prelude::*;

/// Tokens of a completion, of which all but the first are measured.
const TOKENS: usize = 17;
const ROWS: [usize; 2] = [16, 32];
const CONTEXTS: [usize; 3] = [128, 512, 2048];

/// Names of models, with hidden size, width of the gate, layers, heads, key heads and vocabulary.
const MODELS: [(&str, [usize; 6]); 2] = [
    ("28M", [512, 2048, 6, 8, 4, 8192]),
    ("SmolLM2-135M's shape", [576, 1536, 30, 9, 3, 49_152]),
];

fn policy([hidden, gate, layers, heads, kv_heads, vocab]: [usize; 6]) -> Policy {
    fresh(&format!(
        r#"{{"model_type": "llama", "vocab_size": {vocab}, "hidden_size": {hidden}, "intermediate_size": {gate},
        "num_hidden_layers": {layers}, "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads},
        "max_position_embeddings": 4096, "tie_word_embeddings": true}}"#
    ))
}

fn least(work: impl FnMut()) -> f64 {
    common::least(5, work)
}

/// Bytes per second that all threads together read from a buffer of `bytes` bytes.
fn bandwidth(bytes: usize) -> f64 {
    let buffer = vec![1_u64; bytes / 8];
    let share = buffer.len().div_ceil(4 * rayon::current_num_threads());
    let sum = |values: &[u64]| {
        values
            .iter()
            .fold(0_u64, |sum, value| sum.wrapping_add(*value))
    };
    bytes as f64 / least(|| _ = black_box(buffer.par_chunks(share).map(sum).collect::<Vec<_>>()))
}

/// Operations per second of the matrix library.
fn rate() -> f64 {
    let (rows, inner, outputs) = (1024, 512, 2048);
    let a = Tensor::randn(0f32, 1f32, (rows, inner), &Device::Cpu).unwrap();
    let b = Tensor::randn(0f32, 1f32, (inner, outputs), &Device::Cpu).unwrap();
    (2 * rows * inner * outputs) as f64 / least(|| _ = a.matmul(&b).unwrap())
}

fn main() {
    let chosen: Vec<usize> = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let rate = rate();
    println!("{:.0} GFLOP/s", rate / 1e9);
    for (name, shape) in MODELS {
        let policy = policy(shape);
        let [hidden, gate, layers, heads, kv_heads, vocab] = shape;
        let width = hidden / heads;
        let weights = vocab * hidden
            + layers * (2 * hidden * hidden + 2 * hidden * width * kv_heads + 3 * hidden * gate);
        for rows in ROWS {
            for context in CONTEXTS {
                if chosen.len() == 2 && chosen != [rows, context] {
                    continue;
                }
                let prompts = vec![vec![7; context]; rows];
                let seconds = |tokens| least(|| generate(&policy, &prompts, tokens));
                let step = (seconds(TOKENS) - seconds(1)) / (TOKENS - 1) as f64;
                let cache = 2 * rows * layers * kv_heads * width * (context + TOKENS / 2);
                let bytes = 4 * (weights + cache);
                let read = bytes as f64 / bandwidth(bytes);
                let attention = 4 * rows * layers * hidden * (context + TOKENS / 2);
                let computed = (2 * rows * weights + attention) as f64 / rate;
                println!(
                    "{name}, {rows} rows, context {context}: {:.2} ms a step, {:.0} tokens/s; bound {:.2} ms (read {:.2}, computed {:.2}), {:.2} times",
                    1e3 * step,
                    rows as f64 / step,
                    1e3 * read.max(computed),
                    1e3 * read,
                    1e3 * computed,
                    step / read.max(computed),
                );
            }
        }
    }
}
