//! Prints the speed of the model's parts: `cargo bench -p host-model --bench model`.

mod common;

use candle_core::{DType, Device, Tensor};
use common::{fresh, generate};
use host_model::optim::adamw::AdamWConfig;
use host_model::optim::{Optimizer, OptimizerConfig};
use host_model::{Policy, Sequences, Wants, ops};
use host_ops::parts::Instructions;
use host_ops::testing::{Busy, INSTRUCTIONS};

fn policy(hidden: usize, layers: usize, vocab: usize) -> Policy {
    fresh(&format!(
        r#"{{"model_type": "qwen2", "vocab_size": {vocab}, "hidden_size": {hidden}, "intermediate_size": {},
        "num_hidden_layers": {layers}, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "initializer_range": 0.05}}"#,
        4 * hidden
    ))
}

fn least(work: impl FnMut()) -> f64 {
    common::least(
        std::env::var("REPEATS").map_or(7, |text| text.parse().unwrap()),
        work,
    )
}

fn main() {
    products();
    parts();
}

/// Prints the rates of products on one thread for each of the processor's instructions, and the
/// rate of the instruction itself.
fn products() {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    pool.install(|| {
        for (name, instructions) in Instructions::available() {
            INSTRUCTIONS.set(Some(instructions));
            let [f32, bf16] = [Instructions::F32, instructions].map(|instructions| {
                let busy = Busy::new(instructions);
                busy.operations() / 1e9 / thread_time(|| busy.run())
            });
            println!("{name}, GFLOP/s a thread: possible {f32:.0} in f32, {bf16:.0} in bf16");
            for (inner, outputs) in [
                (768, 3072),
                (576, 1536),
                (1536, 576),
                (576, 576),
                (576, 49_152),
            ] {
                for rows in [1, 8, 32, 512, 2048]
                    .into_iter()
                    .filter(|rows| rows * outputs <= 1 << 23)
                {
                    products_of((rows, inner, outputs));
                }
            }
        }
    });
}

/// Prints the three products with a weight: with activations, with gradients, and for the weight's
/// own gradient.
fn products_of((rows, inner, outputs): (usize, usize, usize)) {
    print!("  {rows} x {inner} x {outputs}:");
    for dtype in [DType::F32, DType::BF16] {
        let random = |shape: (usize, usize)| {
            ops::to_dtype(
                &Tensor::randn(0f32, 1f32, shape, &Device::Cpu).unwrap(),
                dtype,
            )
            .unwrap()
        };
        let (x, weight, gradient) = (
            random((rows, inner)),
            random((outputs, inner)),
            random((rows, outputs)),
        );
        let rate = |work: &dyn Fn() -> candle_core::Result<Tensor>| {
            (2 * rows * inner * outputs) as f64 / thread_time(|| _ = work().unwrap()) / 1e9
        };
        print!(" {dtype:?} {:.0}", rate(&|| ops::matmul(&x, &weight.t()?)));
        print!(
            ", gradients {:.0} and {:.0}",
            rate(&|| ops::matmul(&gradient, &weight)),
            { rate(&|| ops::product(&gradient.t()?, &x, DType::F32)) }
        );
        let streamed = ops::Streamed::new(&weight, dtype)
            .unwrap()
            .filter(|streamed| streamed.takes(rows));
        if let Some(streamed) = streamed {
            let product =
                || ops::products_of_few_rows(&x, [&streamed], dtype).map(|[product]| product);
            print!(", of few rows {:.0}", rate(&product));
        }
        print!("{}", if dtype == DType::F32 { ";" } else { "\n" });
    }
}

/// The least of several durations in this thread's processor time, seconds.
fn thread_time(mut work: impl FnMut()) -> f64 {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
    };
    let mut once = || {
        let start = now();
        work();
        now() - start
    };
    let first = once();
    (0..((0.2 / first) as usize).clamp(3, 200))
        .map(|_| once())
        .fold(first, f64::min)
}

/// Prints the speed of generation, log-probabilities, gradients and the optimizer step at several
/// sizes.
fn parts() {
    for (hidden, layers, batch, prompt, tokens) in [
        (64, 2, 48, 10, 16),
        (128, 4, 48, 10, 14),
        (128, 4, 96, 10, 14),
        (128, 4, 512, 10, 14),
        (128, 4, 32, 28, 100),
    ] {
        let policy = policy(hidden, layers, 32);
        let prompts: Vec<Vec<u32>> = (0..batch)
            .map(|row| vec![(row / 8) as u32 % 32; prompt])
            .collect();
        let generating = least(|| generate(&policy, &prompts, tokens));
        let ids = (0..batch * (prompt + tokens))
            .map(|i| (i * i % 31) as u32)
            .collect();
        let numbers = Sequences::numbered(batch);
        let rows = Sequences {
            ids,
            starts: vec![0; batch],
            prompt_len: prompt,
            completion_len: tokens,
            lengths: vec![tokens; batch],
            numbers,
        };
        let wants = Wants {
            entropy: true,
            ..Wants::default()
        };
        let logps = least(|| {
            _ = policy
                .forward_detached(&rows, 1.0)
                .unwrap()
                .outputs(&wants)
                .unwrap()
        });
        let d_logps = vec![0.01; batch * tokens];
        let training = least(|| {
            let forward = policy.forward(&rows, 1.0).unwrap();
            forward.outputs(&wants).unwrap();
            forward.backward(&d_logps).unwrap();
        });
        let gradients = policy
            .forward(&rows, 1.0)
            .unwrap()
            .backward(&d_logps)
            .unwrap();
        let mut optimizer = Optimizer::new(
            policy.params(),
            OptimizerConfig::AdamW(AdamWConfig::default()),
        )
        .unwrap();
        let stepping = least(|| {
            _ = optimizer
                .step(policy.params(), &gradients, None, 1e-6, 1.0)
                .unwrap()
        });
        println!(
            "D {hidden}, {layers} layers, {batch} x ({prompt} + {tokens}): generate {:.1} ms ({:.0} tokens/s), \
             log-probabilities {:.1} ms, forward + backward {:.1} ms, optimizer {:.2} ms",
            1e3 * generating,
            (batch * tokens) as f64 / generating,
            1e3 * logps,
            1e3 * training,
            1e3 * stepping
        );
    }
}
