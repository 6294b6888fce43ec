//! `host train` on a CUDA device: every stage computes what it computes on the CPU, in whatever order the device may do the work.
//!
//! These tests need a `host` with its CUDA backend. `scripts/emulated-gpu` builds one for the emulator and runs them.

use tests::{Folder, RunDir, device};

/// Few short completions, because the emulator runs each thread of a GPU on its own.
const SMALL: &str = "--set train.max_steps=3 --set train.per_device_train_batch_size=16 --set rollout.num_generations=8 \
    --set rollout.max_completion_length=8 --set eval.num_prompts=8 --set eval.eval_steps=3 --set train.save_steps=3 \
    --set train.learning_rate=1e-3 --set train.lr_scheduler_type=constant --set train.warmup_ratio=0";
/// Names and arguments of runs that have every stage: mask, weights, step control, second moment, LoRA, checkpointing, reference.
const RUNS: [(&str, &str); 8] = [
    ("grpo", "--set recipe=grpo --set mask=[]"),
    ("capo", "--plugin libcapo.so"),
    ("capo-soft", "--plugin libcapo.so --set recipe=capo-soft"),
    ("reincapo", "--plugin libreincapo.so --set train.second_moment=kept_and_rejected"),
    ("governed", "--plugin libgovernor.so --set recipe=governed-grpo"),
    ("measured", "--plugin libdrcapo.so --set train.measure_step=1 --set train.gradient_checkpointing=true"),
    ("adapter", "--plugin libcapo.so --set lora.rank=4"),
    ("reference", "--set recipe=grpo --set objective.beta=0.1"),
];
const ON_DEVICE: &str = "--device cuda:0";

/// Metrics that depend on the machine.
fn is_of_the_machine(name: &str) -> bool {
    ["timing_s/", "perf/", "memory/"].iter().any(|kind| name.starts_with(kind))
        || ["step_time", "tokens_per_second"].contains(&name)
}

/// Asserts that two runs decided the same, and that everything else of their steps is near.
fn assert_near(name: &str, found: &RunDir, expected: &RunDir) {
    let (found_steps, expected_steps) = (found.metrics(), expected.metrics());
    assert_eq!(found_steps.len(), expected_steps.len(), "{name}");
    for (step, (found, expected)) in found_steps.iter().zip(&expected_steps).enumerate() {
        for (metric, expected) in expected.iter().filter(|(metric, _)| !is_of_the_machine(metric)) {
            let (Some(found), Some(expected)) = (found.get(metric).and_then(|x| x.as_f64()), expected.as_f64()) else {
                continue;
            };
            let tolerance = 2e-3 * expected.abs().max(found.abs()) + 1e-6;
            let near = (found - expected).abs() <= tolerance;
            assert!(near, "{name}, step {}, {metric}: {found}, on the CPU {expected}", step + 1);
        }
    }
    let far = found.largest_difference(expected);
    assert!(far < 1e-4, "{name}: weights differ by {far}");
}

#[test]
#[ignore = "needs a host with CUDA"]
fn every_stage_computes_what_it_computes_on_the_cpu() {
    let Some(folder) = device::trainer() else { return };
    for (name, args) in RUNS {
        let expected = Folder::new();
        let expected = expected.train(name, &format!("{args} {SMALL}"));
        let found = folder.train(name, &format!("{args} {SMALL} {ON_DEVICE}"));
        assert_near(name, &found, &expected);
    }
}

/// The order of threads and blocks, and of work on different streams, changes no bit. A resumed run is the uninterrupted one.
#[test]
#[ignore = "needs a host with CUDA"]
fn one_seed_gives_the_same_bits() {
    let args = format!("--plugin libcapo.so --set recipe=capo-soft {SMALL} {ON_DEVICE}");
    let runs = ["1", "2"].map(|seed| {
        let folder = device::trainer()?.env("CUDA_EMULATOR_SEED", seed);
        let whole = folder.train("whole", &args).weights();
        folder.train("halves", &format!("{args} --stop-after 1"));
        assert_eq!(folder.resume("halves").weights(), whole);
        Some(whole)
    });
    assert_eq!(runs[0], runs[1]);
}
