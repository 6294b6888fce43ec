//! The rollout's context, besides the batch, reaches the components that ask for it.

use capo_loader::batch_file;
use insta::assert_snapshot;
use safetensors::SafeTensors;
use tests::run_dir::tensors;
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
fn who_has_not_asked_gets_nothing() {
    let folder = Folder::new();
    let outcome = folder.host(&format!("train --output-dir run {}", settings("peek_context", "")));
    assert_snapshot!(outcome.failed().split_once("): ").unwrap().1, @"component `misbehave.mask`: the rollout's context is not there (return `Inputs::ROLLOUT_CONTEXT` from `inputs`)");
    let _ = folder.train("dumped", &settings("none", "--dump-batches batches"));
    let replayed = folder.host(&replay("peek_context", "batches/batch-000000.safetensors"));
    assert_snapshot!(replayed.refused(), @"component `misbehave.mask`: the rollout's context is not there (return `Inputs::ROLLOUT_CONTEXT` from `inputs`)");
}

fn replay(sin: &str, batches: &str) -> String {
    format!("replay --plugin libmisbehave.so --set mask=[{{use=\"misbehave.mask\",sin=\"{sin}\"}}] --out out {batches}")
}

fn batches() -> Vec<String> {
    (0..4).map(|step| format!("batches/{}", batch_file::name(step))).collect()
}

#[test]
fn a_replay_lends_what_training_lent() {
    let folder = Folder::new();
    let run = folder.train("run", &settings("context", "--set train.num_iterations=2 --dump-batches batches"));
    let _ = folder.host(&replay("context", &batches().join(" "))).succeeded();
    for (step, line) in run.metrics().iter().enumerate() {
        for name in ["age", "first_prompt", "farthest"] {
            let trained = line[&format!("misbehave.mask/{name}")].as_f64();
            assert_eq!(Some(recorded(&folder, step as u64, name)), trained, "step {step}, {name}");
        }
    }
}

#[test]
fn the_samplers_top_tokens() {
    let folder = Folder::new();
    let number = |run: &RunDir, name: &str| run.metric(&format!("misbehave.mask/{name}"))[3];
    // All of the vocabulary, then less than there is.
    let whole = folder.train("whole", &settings("top_k", ""));
    assert!((number(&whole, "least") - 1.0).abs() < 1e-5);
    assert_eq!((number(&whole, "k"), number(&whole, "found")), (15.0, tokens(&whole)));
    let two = folder.train("two", &settings("top_k", "--set train.last_layer_top_k=2 --dump-batches batches"));
    assert_eq!(number(&two, "k"), 2.0);
    assert!((0.2..0.999).contains(&number(&two, "least")) && number(&two, "found") < tokens(&two));
    assert_eq!(two.weights(), whole.weights());
    // The tokens that truncation left have all of the probability.
    let truncated = "--set rollout.top_k=3 --set train.last_layer_top_k=6 --set rollout.dtype=bf16";
    let truncated = folder.train("truncated", &settings("top_k", truncated));
    assert!((number(&truncated, "least") - 1.0).abs() < 1e-5);
    assert_eq!((number(&truncated, "k"), number(&truncated, "found")), (6.0, tokens(&truncated)));
    let _ = folder.host(&replay("top_k", &batches().join(" "))).succeeded();
    assert_eq!(recorded(&folder, 3, "least"), number(&two, "least"));
    // A context alone, as it was recorded before.
    let batch = batch_file::read(&folder.path().join(&batches()[0])).unwrap();
    let mut context = batch.context.clone().unwrap();
    context.data.set_top_k(0, Vec::new(), Vec::new());
    batch_file::write(&folder.path().join("old.safetensors"), &batch.view(), Some(&context.data.lend(0))).unwrap();
    assert_snapshot!(folder.host(&replay("top_k", "old.safetensors")).refused(), @"batch file `old.safetensors`: component `misbehave.mask` asks for the sampler's top tokens, which it does not hold (record batches in a run with this component)");
}

/// Completion tokens of the last step, one rollout each.
fn tokens(run: &RunDir) -> f64 {
    48.0 * run.metric("completions/mean_length")[3]
}

/// Value that the mask recorded under `name` in the replay of step `step`.
fn recorded(folder: &Folder, step: u64, name: &str) -> f64 {
    let file = std::fs::read(folder.path().join(format!("out/{}", batch_file::name(step)))).unwrap();
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    header.metadata().as_ref().unwrap()[&format!("misbehave.mask/{name}")].parse().unwrap()
}

#[test]
fn a_replay_drops_what_training_dropped() {
    let folder = Folder::new();
    // Another temperature than the loss's, half of the rollout for each step.
    let parts =
        "--set train.per_device_train_batch_size=24 --set train.steps_per_generation=2 --set rollout.temperature=1.3";
    let run = folder.train("run", &settings("mismatch", &format!("{parts} --dump-batches batches")));
    let rates = run.metric("mask/rejection_rate");
    assert!(rates.iter().all(|rate| (0.01..0.9).contains(rate)), "{rates:?}");
    let _ = folder.host(&replay("mismatch", &batches().join(" "))).succeeded();
    for (file, rate) in batches().iter().zip(rates) {
        let count = |dir: &str, name: &str| {
            let values = &tensors(&folder.path().join(file.replace("batches", dir)))[name];
            f64::from(values.iter().sum::<f32>())
        };
        let rejected = 1.0 - count("out", "keep") / count("batches", "completion_mask");
        assert!((rejected - rate).abs() < 1e-12, "{file}: {rejected} against {rate}");
    }
}

#[test]
fn batches_hold_the_context_whoever_asked() {
    let folder = Folder::new();
    let _ = folder.train("run", &format!("{FOUR_STEPS} --dump-batches batches"));
    let _ = folder.host(&replay("context", &batches().join(" "))).succeeded();
    // As such files were before.
    let batch = batch_file::read(&folder.path().join(&batches()[0])).unwrap();
    batch_file::write(&folder.path().join("old.safetensors"), &batch.view(), None).unwrap();
    let _ = folder.host(&replay("none", "old.safetensors")).succeeded();
    assert_snapshot!(folder.host(&replay("context", "old.safetensors")).refused(), @"batch file `old.safetensors`: component `misbehave.mask` asks for the rollout's context, which it does not hold (record batches in a run with this component)");
}
