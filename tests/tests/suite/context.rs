//! What a rollout knows besides its batch reaches the components that ask for it.

use insta::assert_snapshot;
use tests::{Folder, RunDir};

use crate::FOUR_STEPS;

fn settings(sin: &str, extra: &str) -> String {
    let mask = format!("mask=[{{use=\"misbehave.mask\",sin=\"{sin}\"}}]");
    format!("--plugin libmisbehave.so --set {mask} {FOUR_STEPS} {extra}")
}

fn train(extra: &str) -> (Folder, RunDir) {
    let folder = Folder::new();
    let run = folder.train("run", &settings("context", extra));
    (folder, run)
}

#[test]
fn the_samplers_log_probabilities_are_its_own() {
    // Sampled from what the trainer computes: equal but for rounding.
    let (folder, same) = train("--set train.loss_temperature=0.9");
    let farthest = same.metric("misbehave.mask/farthest");
    assert!(farthest.iter().all(|far| *far < 1e-4), "{farthest:?}");
    // Truncated, or at another temperature, they are not.
    for extra in ["--set train.loss_temperature=0.9 --set rollout.top_k=3", "--set train.loss_temperature=1.0"] {
        let (_folder, other) = train(extra);
        let farthest = other.metric("misbehave.mask/farthest");
        assert!(farthest.iter().all(|far| *far > 1e-3), "{extra}: {farthest:?}");
    }
    // Asking changes nothing of the run.
    let plain = folder.train("plain", &settings("none", "--set train.loss_temperature=0.9"));
    assert_eq!(plain.weights(), same.weights());
    let bf16 = folder.train("bf16", &settings("context", "--set train.loss_temperature=0.9 --set train.dtype=bf16"));
    let farthest = bf16.metric("misbehave.mask/farthest");
    assert!(farthest.iter().all(|far| *far > 1e-4 && *far < 1.0), "the sampler decodes in bf16 too: {farthest:?}");
}

#[test]
fn it_knows_how_old_it_is_and_which_prompts_it_is_of() {
    let (_folder, run) = train("--set train.num_iterations=2");
    assert_eq!(run.metric("misbehave.mask/age"), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(run.metric("misbehave.mask/first_prompt"), [0.0, 0.0, 6.0, 6.0]);
    // Two optimizer steps share a rollout: each sees its own part.
    let (_folder, parts) = train("--set train.per_device_train_batch_size=24 --set train.steps_per_generation=2");
    assert_eq!(parts.metric("misbehave.mask/age"), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(parts.metric("misbehave.mask/first_prompt"), [0.0, 3.0, 6.0, 9.0]);
}

#[test]
fn who_has_not_asked_gets_nothing_and_a_replay_has_none() {
    let folder = Folder::new();
    let outcome = folder.host(&format!("train --output-dir run {}", settings("peek_context", "")));
    assert_snapshot!(outcome.failed().split_once("): ").unwrap().1, @"component `misbehave.mask`: the rollout's context is not there (return `Inputs::ROLLOUT_CONTEXT` from `inputs`; recorded batches have none)");
    let _ = folder.train("dumped", &settings("context", "--dump-batches batches"));
    let mask = "--plugin libmisbehave.so --set mask=[{use=\"misbehave.mask\",sin=\"context\"}]";
    assert_snapshot!(folder.host(&format!("replay {mask} --out out batches/batch-000000.safetensors")).refused(), @"batch file `batches/batch-000000.safetensors`: component `misbehave.mask` asks for the rollout's context, which no recorded batch holds (it runs in training alone)");
}
