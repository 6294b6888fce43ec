//! `host train` on a CUDA device: every stage agrees with the CPU, in whatever order the device
//! does the work.
//!
//! These tests need a `host` with its CUDA backend. `scripts/emulated-gpu` builds one for the
//! emulator and runs them.

use std::collections::BTreeMap;

use tests::artifacts::workspace;
use tests::{Folder, RunDir, device};

use crate::environments::{PATIENT, with};

/// Few short completions, because the emulator runs each thread of a GPU on its own.
const SMALL: &str = "--set train.max_steps=3 --set train.per_device_train_batch_size=16 --set rollout.num_generations=8 \
    --set rollout.max_completion_length=16 --set eval.num_prompts=8 --set eval.eval_steps=3 --set train.save_steps=3 \
    --set train.learning_rate=1e-3 --set train.lr_scheduler_type=constant --set train.warmup_ratio=0";
/// Names and arguments of runs that have every stage: mask, weights, step control, second moment,
/// LoRA, checkpointing, reference, rows that wait.
const RUNS: [(&str, &str); 9] = [
    ("grpo", "--set recipe=grpo --set mask=[]"),
    ("capo", "--plugin libcapo.so"),
    ("capo-soft", "--plugin libcapo.so --set recipe=capo-soft"),
    (
        "reincapo",
        "--plugin libreincapo.so --set train.second_moment=kept_and_rejected",
    ),
    (
        "governed",
        "--plugin libgovernor.so --set recipe=governed-grpo",
    ),
    (
        "measured",
        "--plugin libdrcapo.so --set train.measure_step=1 --set train.gradient_checkpointing=true",
    ),
    (
        "adapter",
        "--plugin libcapo.so --set model.use_peft=true --set model.lora_r=4 --set model.lora_target_modules=all-linear",
    ),
    ("reference", "--set recipe=grpo --set objective.beta=0.1"),
    (
        "waiting",
        "--set recipe=grpo --set mask=[] --set rollout.max_num_seqs=5",
    ),
];
/// Runs of one step in bf16. Each device rounds different numbers.
const RUNS_IN_BF16: [(&str, &str); 4] = [
    (
        "sgd",
        "--set train.optimizer=sgd --set train.sgd_momentum=0.9",
    ),
    (
        "accumulated",
        "--set train.per_device_train_batch_size=8 --set train.gradient_accumulation_steps=2",
    ),
    ("measured", "--set train.measure_step=1"),
    (
        "governed",
        "--plugin libgovernor.so --set recipe=governed-grpo",
    ),
];
const ON_DEVICE: &str = "--device cuda:0";

/// Shares by which a number of a step may differ from the CPU's, in f32 and in bf16, where the
/// governor's is a ratio of small differences.
const F32: f64 = 2e-3;
const BF16: f64 = 0.125;

/// Metrics that depend on the machine.
fn is_of_the_machine(name: &str) -> bool {
    ["timing_s/", "perf/", "memory/"]
        .iter()
        .any(|kind| name.starts_with(kind))
        || ["step_time", "tokens_per_second"].contains(&name)
}

/// Asserts that two runs made the same decisions, and that all other numbers of their steps differ
/// at most by the share `apart`.
fn assert_near(name: &str, found: &RunDir, expected: &RunDir, apart: f64) {
    let (found_steps, expected_steps) = (found.metrics(), expected.metrics());
    assert_eq!(found_steps.len(), expected_steps.len(), "{name}");
    for (step, (found, expected)) in found_steps.iter().zip(&expected_steps).enumerate() {
        for (metric, expected) in expected
            .iter()
            .filter(|(metric, _)| !is_of_the_machine(metric))
        {
            let (Some(found), Some(expected)) = (
                found.get(metric).and_then(|x| x.as_f64()),
                expected.as_f64(),
            ) else {
                continue;
            };
            // These are small differences of large numbers.
            let cancels = ["rollout_corr/", "sampling/"]
                .iter()
                .any(|kind| metric.starts_with(kind));
            let tolerance =
                apart * expected.abs().max(found.abs()) + if cancels { apart / 40.0 } else { 1e-6 };
            let near = (found - expected).abs() <= tolerance;
            assert!(
                near,
                "{name}, step {}, {metric}: {found}, on the CPU {expected}",
                step + 1
            );
        }
    }
    // If a gradient is only rounding noise, Adam's step can still be half the rate.
    if apart > F32
        || found
            .last_checkpoint()
            .join("adapter_model.safetensors")
            .exists()
    {
        return;
    }
    let far = found.largest_difference(expected);
    assert!(far < 5e-4, "{name}: weights differ by {far}");
}

#[test]
#[ignore = "needs a host with CUDA"]
fn every_stage_computes_what_it_computes_on_the_cpu() {
    let Some(folder) = device::trainer() else {
        return;
    };
    for (name, args) in RUNS {
        let expected = Folder::new();
        let expected = expected.train(name, &format!("{args} {SMALL}"));
        let found = folder.train(name, &format!("{args} {SMALL} {ON_DEVICE}"));
        assert_near(name, &found, &expected, F32);
    }
    for (name, args) in RUNS_IN_BF16 {
        let args = format!(
            "--set recipe=grpo --set mask=[] {SMALL} --set train.max_steps=1 --set train.dtype=bf16 {args}"
        );
        let name = format!("{name}-bf16");
        let expected = folder.train(&format!("{name}-cpu"), &args);
        let found = folder.train(&name, &format!("{args} {ON_DEVICE}"));
        assert_near(&name, &found, &expected, BF16);
    }
}

/// Neither the order of threads, blocks and streams nor what lies in memory that nobody wrote
/// changes a bit. A resumed run has the same bits as an uninterrupted one. In bf16 the reference
/// has weights in bf16.
#[test]
#[ignore = "needs a host with CUDA"]
fn one_seed_gives_the_same_bits() {
    for dtype in ["f32", "bf16"] {
        let loss = r#"--set recipe=capo-soft --set objective={use="grpo.objective",beta=0.1}"#;
        let args =
            format!("--plugin libcapo.so {loss} --set train.dtype={dtype} {SMALL} {ON_DEVICE}");
        let runs = [("1", "255"), ("2", "0")].map(|(seed, fill)| {
            let folder = device::trainer()?
                .env("CUDA_EMULATOR_SEED", seed)
                .env("CUDA_EMULATOR_FILL", fill);
            let whole = folder.train("whole", &args).weights();
            folder.train("halves", &format!("{args} --stop-after 1"));
            assert_eq!(folder.resume("halves").weights(), whole, "{dtype}");
            Some(whole)
        });
        assert_eq!(runs[0], runs[1], "{dtype}");
    }
}

/// Rows continue while others wait for answers, and no bit depends on when answers come.
#[test]
#[ignore = "needs a host with CUDA"]
fn no_row_waits_for_the_answer_to_another() {
    for dtype in ["f32", "bf16"] {
        let few = "--set train.max_steps=2 --set train.per_device_train_batch_size=8 --set rollout.num_generations=4 --set eval.num_prompts=0";
        let runs = [("late", "1"), ("now", "2")].map(|(word, seed)| {
            let folder = device::trainer()?.env("CUDA_EMULATOR_SEED", seed);
            folder.write("game", PATIENT);
            let args = format!(
                "{} {few} --set train.dtype={dtype} {ON_DEVICE}",
                with(",timeout=300", word)
            );
            Some(folder.train(word, &args).weights())
        });
        assert_eq!(runs[0], runs[1], "{dtype}");
    }
}

/// The requests of `host train` to the device in a run of `steps` and completions of `tokens`, by
/// kind of work.
fn asked(folder: &Folder, steps: usize, tokens: usize) -> BTreeMap<String, i64> {
    let name = format!("{steps}-{tokens}");
    let trace = folder.path().join(format!("{name}.trace"));
    let args = format!(
        "--set recipe=grpo --set mask=[] --set model.model_name_or_path=model --set model.fresh_weights=true \
         --set eval.num_prompts=0 --set train.dtype=bf16 --set train.per_device_train_batch_size=8 \
         --set rollout.num_generations=4 --set train.max_steps={steps} --set rollout.max_completion_length={tokens}"
    );
    let mut train = folder.command(&format!("train --output-dir {name} {args} {ON_DEVICE}"));
    let _ = folder
        .outcome(train.env("CUDA_EMULATOR_TRACE", &trace).output().unwrap())
        .succeeded();
    let mut counts = BTreeMap::new();
    for line in std::fs::read_to_string(&trace).unwrap().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// Work of a whole step with completions of 6 tokens, and of one more token of them, for the
/// layers, heads and biases of configs/gpu. A step's launches depend on its sizes in two ways
/// alone: long caches are attended in parts, and many logits in chunks.
#[test]
#[ignore = "needs a host with CUDA"]
fn launches_of_a_step_and_of_a_token() {
    // Only the emulator writes a trace.
    if device::is_real() {
        return;
    }
    let Some(folder) = device::trainer() else {
        return;
    };
    let config =
        std::fs::read_to_string(workspace().join("configs/gpu/model/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    for (key, size) in [
        ("vocab_size", 32),
        ("hidden_size", 96),
        ("intermediate_size", 192),
    ] {
        config[key] = size.into();
    }
    folder.write("model/config.json", config.to_string());
    folder.write_tokenizer("model");
    let [two, three, longer] =
        [(2, 6), (3, 6), (2, 7)].map(|(steps, tokens)| asked(&folder, steps, tokens));
    let count = |counts: &BTreeMap<String, i64>, what: &str| counts.get(what).copied().unwrap_or(0);
    let (mut lines, mut launches) = (Vec::new(), [0, 0]);
    for what in longer.keys() {
        let work = [
            count(&three, what) - count(&two, what),
            (count(&longer, what) - count(&two, what)) / 2,
        ];
        if work != [0, 0] {
            lines.push(format!("{:6} {:6}  {what}", work[0], work[1]));
        }
        let is_launch = !what.starts_with('(')
            || ["(product)", "(fill)", "(copy on the device)"].contains(&what.as_str());
        if is_launch {
            launches = [launches[0] + work[0], launches[1] + work[1]];
        }
    }
    lines.insert(
        0,
        format!(
            "  step  token\n{:6} {:6}  launches, products, fills and copies on the device",
            launches[0], launches[1]
        ),
    );
    insta::assert_snapshot!(lines.join("\n"));
}
