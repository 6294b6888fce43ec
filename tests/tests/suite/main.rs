//! Whole-project tests: `host` as a user runs it, each time in a fresh folder.
//!
//! Sentences and numbers are inline snapshots. After a change that is meant, `cargo insta test --accept -p tests` writes the
//! new ones into these files; read the difference before committing it.

mod algorithms;
mod benchmarks;
mod chat;
mod check;
mod check_built_in;
mod check_sins;
mod cli;
mod compare_masks;
mod completions;
mod composition;
mod config;
mod context;
mod cuda;
mod cuda_state;
mod damage;
mod data;
mod data_docs;
mod device;
mod diagnose;
mod distribution;
mod download;
mod equivalence;
mod evolution;
mod examples;
mod failure;
mod foreign;
mod frozen;
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
mod replay;
mod report;
mod resume;
mod rewards;
mod rows;
mod run_directory;
mod runs;
mod sampler;
mod score;
mod semantics;
mod settings_page;
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

/// The error message of `host train ARGS`, which leaves nothing behind.
fn refused(args: &str) -> String {
    let folder = tests::Folder::new();
    let sentence = folder.host(&format!("train {args}")).refused();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a refused run leaves nothing behind");
    sentence
}
