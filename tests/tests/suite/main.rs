//! Whole-project tests: `host` as a user runs it, each time in a fresh folder.
//!
//! Sentences and numbers are inline snapshots, longer texts are files in `snapshots/`. After an
//! intended change, `cargo insta test --accept -p tests` writes the new ones; read the difference
//! before committing it.

mod advice;
mod algorithms;
mod benchmarks;
mod chat;
mod check;
mod check_sins;
mod cli;
mod compare_masks;
mod completions;
mod composition;
mod config;
mod context;
mod cuda;
mod cuda_state;
mod cuda_training;
mod cuda_training_limits;
mod damage;
mod data;
mod data_docs;
mod device;
mod diagnose;
mod distribution;
mod download;
mod environments;
mod equivalence;
mod every_point;
mod evolution;
mod examples;
mod failure;
mod gguf;
mod interruption;
mod keeping;
mod limits;
mod loading;
mod lora;
mod masks;
mod metrics;
mod misbehaviour;
mod models;
mod new_plugin;
mod optimizers;
mod paper;
mod read_models;
mod recipes;
mod refused;
mod replay;
mod report;
mod resume;
mod rewards;
mod run_directory;
mod runs;
mod score;
mod semantics;
mod settings_page;
mod sft;
mod snapshots;
mod step_controls;
mod story;
mod sweep;
mod tensorboard;
mod terminal;
mod trajectory;
mod trust;
mod tutorial;
mod weights;

/// One quick step without evaluation.
const ONE_STEP: &str = "--set train.max_steps=1 --set eval.num_prompts=0";
/// Four steps, evaluated on few prompts.
const FOUR_STEPS: &str = "--set train.max_steps=4 --set eval.num_prompts=16";

/// The full rate from the first step on. With a warm-up, the first step would move nothing.
const FROM_THE_FIRST_STEP: &str =
    "--set train.lr_scheduler_type=constant --set train.warmup_ratio=0";
/// Completions are drawn from the policy without truncation or another temperature.
const AS_IT_IS: &str = "--set rollout.temperature=1 --set rollout.top_k=0 --set rollout.top_p=1";

/// The 48 completions of a step, in micro-batches of this size.
fn split(size: usize) -> String {
    let steps = 48 / size;
    format!(
        "--set train.per_device_train_batch_size={size} --set train.gradient_accumulation_steps={steps}"
    )
}

/// The error message of `host train ARGS`. Asserts that the command leaves nothing behind.
fn refused(args: &str) -> String {
    tests::Folder::new().refused(&format!("train {args}"))
}
