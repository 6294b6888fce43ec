//! Helpers of the model's benchmarks.

use std::time::Instant;

use candle_core::Device;
use host_model::{Config, Generation, Policy, SamplingParams};
use host_rng::{fill_standard_normal, stream};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A model of fresh weights, from the text of its `config.json`.
pub fn fresh(json: &str) -> Policy {
    let mut rng = stream(5, "test", &[]);
    let config = Config::from_json(json.as_bytes()).unwrap();
    Policy::init(config, &Device::Cpu, &mut |out: &mut [f32]| {
        fill_standard_normal(&mut rng, out)
    })
    .unwrap()
}

/// Samples a completion of `tokens` tokens for each prompt.
pub fn generate(policy: &Policy, prompts: &[Vec<u32>], tokens: usize) {
    let generation = Generation {
        sampling: SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
        },
        max_completion_length: tokens,
        max_turn_length: 0,
        eos_ids: vec![],
        logps: false,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: 0,
    };
    let mut rngs: Vec<_> = (0..prompts.len() as u64)
        .map(|row| stream(5, "sample", &[row]))
        .collect();
    policy.generate(prompts, &generation, &mut rngs).unwrap();
}

/// The least of several timings, seconds.
pub fn least(repeats: usize, mut work: impl FnMut()) -> f64 {
    let mut time = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..repeats).map(|_| time()).fold(f64::INFINITY, f64::min)
}
