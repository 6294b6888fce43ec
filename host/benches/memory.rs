//! Prints the peak memory, what was estimated before, and the time of one training step (forward
//! pass with outputs of the last layer, backward pass, AdamW) on the CPU:
//! `cargo bench -p host --bench memory`, or `-- 0.5b` for the large model alone.
//!
//! Each case is a process of its own. Weights are fresh, and so are the tokens: what they are
//! changes neither memory nor time.

use std::process::Command;
use std::time::Instant;

use candle_core::Device;
use host::estimate::memory::PROGRAM;
use host_model::optim::adamw::AdamWConfig;
use host_model::optim::{Optimizer, OptimizerConfig};
use host_model::{Config, Policy, Sequences, Shape, Wants};
use host_rng::{fill_standard_normal, stream};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The embedded model with room for long sequences.
const TINY: &str = r#"{"model_type": "qwen2", "vocab_size": 15, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}"#;
/// Qwen2.5-0.5B.
const LARGE: &str = r#"{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "tie_word_embeddings": true}"#;

struct Case {
    name: &'static str,
    config: &'static str,
    rows: usize,
    tokens: usize,
    gradient_checkpointing: bool,
}

const CASES: [Case; 5] = [
    Case {
        name: "tiny",
        config: TINY,
        rows: 8,
        tokens: 4000,
        gradient_checkpointing: false,
    },
    Case {
        name: "tiny-checkpointed",
        config: TINY,
        rows: 8,
        tokens: 4000,
        gradient_checkpointing: true,
    },
    Case {
        name: "0.5b",
        config: LARGE,
        rows: 8,
        tokens: 256,
        gradient_checkpointing: false,
    },
    Case {
        name: "0.5b-checkpointed",
        config: LARGE,
        rows: 8,
        tokens: 256,
        gradient_checkpointing: true,
    },
    Case {
        name: "0.5b-long-checkpointed",
        config: LARGE,
        rows: 1,
        tokens: 2048,
        gradient_checkpointing: true,
    },
];

fn main() {
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--bench"))
        .collect();
    if let [one, name] = &asked[..]
        && one == "--one"
    {
        let case = CASES
            .iter()
            .find(|case| case.name == name)
            .expect("a case of this name");
        return step(case);
    }
    println!(
        "| case | completions | tokens | `gradient_checkpointing` | peak memory, GB | estimated | seconds a step |"
    );
    println!("|---|---|---|---|---|---|---|");
    for case in CASES
        .iter()
        .filter(|case| asked.is_empty() || asked.iter().any(|name| case.name.starts_with(name)))
    {
        let own = std::env::current_exe().expect("this program has a path");
        let done = Command::new(own)
            .args(["--one", case.name])
            .status()
            .expect("this program runs");
        assert!(done.success(), "`{}` ended with {done}", case.name);
    }
}

/// Two steps, of which the second is timed; prints a line.
fn step(case: &Case) {
    let config = Config::from_json(case.config.as_bytes()).expect("a configuration");
    let vocabulary = config.vocab_size as u64;
    let mut rng = stream(5, "test", &[]);
    let policy = Policy::init(config, &Device::Cpu, &mut |out: &mut [f32]| {
        fill_standard_normal(&mut rng, out)
    })
    .expect("fresh weights")
    .with_gradient_checkpointing(case.gradient_checkpointing);
    let mut optimizer = Optimizer::new(
        policy.params(),
        OptimizerConfig::AdamW(AdamWConfig::default()),
    )
    .expect("an optimizer");
    let prompt = 8;
    let count = case.rows * (prompt + case.tokens);
    let rows = Sequences {
        ids: (0..count as u64)
            .map(|i| (i * 2_654_435_761 % vocabulary) as u32)
            .collect(),
        starts: vec![0; case.rows],
        prompt_len: prompt,
        completion_len: case.tokens,
        lengths: vec![case.tokens; case.rows],
        numbers: Sequences::numbered(case.rows),
    };
    let d_logps: Vec<f32> = (0..case.rows * case.tokens)
        .map(|i| (i as f32).sin() / case.tokens as f32)
        .collect();
    let mut seconds = 0.0;
    for _ in 0..2 {
        let started = Instant::now();
        let forward = policy.forward(&rows, 1.0).expect("a forward pass");
        forward
            .outputs(&Wants {
                last_layer_k: Some(50.min(vocabulary as usize)),
                ..Wants::default()
            })
            .unwrap();
        let gradients = forward.backward(&d_logps).expect("gradients");
        drop(forward);
        optimizer
            .step(policy.params(), &gradients, None, 1e-5, 1.0)
            .expect("a step");
        seconds = started.elapsed().as_secs_f64();
    }
    let Case {
        name,
        rows,
        tokens,
        gradient_checkpointing,
        ..
    } = *case;
    let shape = Shape {
        rows,
        prompts: rows,
        prompt,
        tokens,
    };
    let parts: u128 = policy
        .training_bytes(shape, false, false)
        .iter()
        .map(|(_, bytes)| bytes)
        .sum();
    let weights = policy.weights().element_count() as u128;
    let layer = (rows * tokens) as u128
        * 2
        * 4
        * (policy.config().hidden_size + 2 * 50.min(vocabulary as usize) + 3) as u128;
    let estimate = (PROGRAM + 3 * 4 * weights + parts + layer) as f64 / 1e9;
    println!(
        "| {name} | {rows} | {tokens} | {gradient_checkpointing} | {:.2} | {estimate:.2} | {seconds:.1} |",
        peak()
    );
}

/// The most memory that this process has had, GB.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<f64>().ok())
        .map_or(f64::NAN, |kib| kib * 1024.0 / 1e9)
}
