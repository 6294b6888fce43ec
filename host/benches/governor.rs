//! Prints what a governor adds to a step at 28 million parameters, on the loop as it is:
//! `cargo build --release -p governor && cargo bench -p host --bench governor`.
//!
//! `STEPS` (default 10) steps are timed after a first one; `BATCH` (default 16) is the number of completions, of 64 tokens each.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use capo_loader::registry::Registry;
use capo_plugin::prelude::*;
use host::config::{self, Draft};
use host::run::{METRICS_FILE, Run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// 1 for every second completion: random weights earn nothing else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alternating {}

impl Reward for Alternating {
    fn score(&mut self, _: &mut Ctx, _: &Rollout, rewards: &mut [f32]) -> Result<(), PluginError> {
        rewards.iter_mut().enumerate().for_each(|(at, reward)| *reward = (at % 2) as f32);
        Ok(())
    }
}

register!(Reward, Alternating, "bench.alternating", "1 for every second completion");

/// 27.9 million weights, an eighth of them in the head.
const MODEL: &str = r#"{"model_type": "qwen2", "vocab_size": 8192, "hidden_size": 384, "intermediate_size": 1536,
    "num_hidden_layers": 10, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "tie_word_embeddings": false, "eos_token_id": 1, "pad_token_id": 0}"#;

const SETTINGS: &str = r#"
reward = [{ use = "bench.alternating" }]
advantage = { use = "grpo.advantage" }
objective = { use = "grpo.objective" }
[model]
fresh_weights = true
[data]
dataset_name = "embedded:arithmetic"
max_prompt_length = 16
[rollout]
num_generations = 8
max_completion_length = 64
[train]
learning_rate = 1e-4
lr_scheduler_type = "constant"
"#;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Where cargo put the governor, beside the folder of this executable.
fn library() -> Result<PathBuf> {
    let bench = std::env::current_exe()?;
    let file = bench.parent().and_then(Path::parent).context("a bench lies in a target folder")?.join("libgovernor.so");
    anyhow::ensure!(file.exists(), "`{}` is not there (run `cargo build --release -p governor`)", file.display());
    Ok(file)
}

fn main() -> Result<()> {
    let (folder, registry) = (tempfile::tempdir()?, Registry::open(&[library()?])?);
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/gpu/model");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(name), folder.path().join(name))?;
    }
    std::fs::write(folder.path().join("config.json"), MODEL)?;
    let mut plain = None;
    for (name, controls) in [
        ("no governor", "[]"),
        ("a target, measured every step", "[{use=\"governor.kl\",target=3e-5}]"),
        ("a target, every = 10", "[{use=\"governor.kl\",target=3e-5,every=10}]"),
        ("auto", "[{use=\"governor.kl\"}]"),
    ] {
        let times = run(&registry, folder.path(), controls)?;
        let (step, control) = (mean(&times, |time| time.0), mean(&times, |time| time.1));
        let plain = *plain.get_or_insert(step);
        println!(
            "{name:<36} {step:>7.3} s per step, {:+.1}%; of it {:.1}% between gradient and new weights",
            100.0 * (step / plain - 1.0),
            100.0 * control / step
        );
    }
    Ok(())
}

fn mean(times: &[(f64, f64)], of: fn(&(f64, f64)) -> f64) -> f64 {
    times.iter().map(of).sum::<f64>() / times.len() as f64
}

/// The seconds of each step but the first, and those of them that went to step controls.
fn run(registry: &Registry, model: &Path, controls: &str) -> Result<Vec<(f64, f64)>> {
    let sets = [
        format!("model.model_name_or_path={}", model.display()),
        format!("train.max_steps={}", number("STEPS", 10) + 1),
        format!("train.per_device_train_batch_size={}", number("BATCH", 16)),
        format!("step_control={controls}"),
    ];
    let mut config = config::resolve(registry, Draft::read(None, SETTINGS, &sets)?)?.config;
    let dir = model.join(format!("run-{}", controls.len()));
    config.train.output_dir = Some(dir.clone());
    let mut run = Run::start(config, registry)?;
    host::train::train(&mut run, &mut (), None, &false.into())?;
    let text = std::fs::read_to_string(dir.join(METRICS_FILE))?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<serde_json::Value>, _>>()?;
    let seconds = |line: &serde_json::Value, name: &str| line[name].as_f64().unwrap_or_default();
    let steps = lines.iter().filter(|line| line["step"].as_u64() > Some(1));
    Ok(steps.map(|line| (seconds(line, "step_time"), seconds(line, "timing_s/step_control"))).collect())
}
