//! Circumstances that must not change a run: how a component was linked, masks that do nothing, threads, how the work
//! is split.

// Linked into this executable, so that its components are built in here.
use capo as _;

use std::time::Instant;

use capo_loader::registry::Registry;
use host::config::{self, Draft};
use host::report::Report;
use host::run::Run;
use tests::Folder;

use crate::FOUR_STEPS;

const CAPO: &str = "--plugin libcapo.so";
/// Every mask of a run, switched off.
const NO_LIMITS: &str = "--set mask.0.fisher_threshold=false --set mask.0.hessian_threshold=false";

/// Largest difference of a weight after four steps whose work was split in another way: float addition in another order.
/// A hundredth of one step at the default rate of 1e-4; one bit of a weight above 1 is 1.2e-7.
const SPLIT_BOUND: f32 = 1e-6;

/// Completions are drawn from the policy as it is.
const AS_IT_IS: &str = "--set rollout.temperature=1 --set rollout.top_k=0 --set rollout.top_p=1";

#[test]
fn the_same_run_twice() {
    let folder = Folder::new();
    let args = format!("{CAPO} {FOUR_STEPS}");
    let first = folder.train("first", &args);
    first.assert_same_files(&folder.train("second", &args));
    let other = folder.train("other", &format!("{args} --set train.seed=43"));
    assert_ne!(first.weights(), other.weights(), "the seed matters");
    assert!(first.metric("mask/rejection_rate").iter().any(|&rate| rate > 0.0), "the mask rejects something");
}

#[test]
fn activations_that_are_computed_again() {
    let folder = Folder::new();
    let args = format!("{CAPO} {FOUR_STEPS}");
    let kept = folder.train("kept", &args);
    let again = folder.train("again", &format!("{args} --set train.gradient_checkpointing=true"));
    assert_eq!(kept.files(), again.files(), "model, optimizer and the mask's moments");
}

#[test]
fn linked_is_loaded() {
    let folder = Folder::new();
    let loaded = folder.train("loaded", &format!("{CAPO} {FOUR_STEPS}"));
    let registry = Registry::open(&[]).unwrap();
    let linked = registry.offers().into_iter().find(|offer| offer.id == "capo.curvature").expect("capo is linked in");
    assert_eq!(linked.origin.to_string(), "built in");
    let sets = ["recipe=capo", "train.max_steps=4", "eval.num_prompts=16"].map(String::from);
    let mut config = config::resolve(&registry, Draft::read(None, config::DEFAULT, &sets).unwrap()).unwrap().config;
    config.train.output_dir = Some(folder.path().join("linked"));
    let mut run = Run::start(config, &registry).unwrap();
    let mut report = Report::new(Instant::now(), &run);
    host::train::train(&mut run, &mut report, None, &false.into()).unwrap();
    loaded.assert_same_files(&folder.run_dir("linked"));
}

#[test]
fn a_mask_that_keeps_all_is_no_mask() {
    let folder = Folder::new();
    let none = folder.train("none", FOUR_STEPS);
    let mask = "--plugin libmisbehave.so --set mask=[{use=\"misbehave.mask\",sin=\"none\"}]";
    let kept = folder.train("kept", &format!("{mask} {FOUR_STEPS}"));
    assert_eq!(none.weights(), kept.weights());
    let mut metrics = kept.metrics();
    metrics.iter_mut().for_each(|line| line.retain(|name, _| !name.starts_with("misbehave.")));
    assert_eq!(none.metrics(), metrics);
}

#[test]
fn capo_without_limits_is_grpo() {
    let folder = Folder::new();
    let grpo = folder.train("grpo", FOUR_STEPS);
    let capo = folder.train("capo", &format!("{CAPO} {NO_LIMITS} {FOUR_STEPS}"));
    assert_eq!(capo.metric("mask/rejection_rate"), [0.0; 4]);
    assert_eq!(grpo.weights(), capo.weights());
}

#[test]
fn threads_change_no_bit() {
    let args = format!("{CAPO} {FOUR_STEPS}");
    let with = |threads: &str| {
        let folder = Folder::new().env("RAYON_NUM_THREADS", threads).env("CANDLE_NUM_THREADS", threads);
        let run = folder.train("run", &args);
        (folder, run)
    };
    let ((_one, one), (_two, two), (_five, five)) = (with("1"), with("2"), with("5"));
    one.assert_same_files(&two);
    one.assert_same_files(&five);
}

#[test]
fn a_split_batch_is_the_whole_batch() {
    let folder = Folder::new();
    let args = format!("{CAPO} {FOUR_STEPS}");
    let whole = folder.train("whole", &format!("{args} --set train.per_device_train_batch_size=48"));
    assert!(whole.metric("mask/rejection_rate").iter().any(|&rate| rate > 0.0), "the mask rejects something");
    // The last are micro-batches of one group each.
    for (micro, steps) in [(16, 3), (8, 6)] {
        let split =
            format!("--set train.per_device_train_batch_size={micro} --set train.gradient_accumulation_steps={steps}");
        let split = folder.train(&format!("split{micro}"), &format!("{args} {split}"));
        for name in ["reward", "num_tokens", "completions/mean_length", "mask/rejection_rate", "capo.curvature/rows"] {
            assert_eq!(whole.metric(name), split.metric(name), "{name}");
        }
        let difference = whole.largest_difference(&split);
        assert!(difference < SPLIT_BOUND, "{difference:e}");
    }
}

#[test]
fn activations_stored_for_the_backward_pass_change_no_bit() {
    let folder = Folder::new();
    let args = format!(
        "{CAPO} {FOUR_STEPS} --set train.per_device_train_batch_size=8 --set train.gradient_accumulation_steps=6"
    );
    let all = folder.train("all", &args);
    let none = folder.train("none", &format!("{args} --set train.activation_budget=0"));
    let some = folder.train("some", &format!("{args} --set train.activation_budget=2"));
    assert_eq!(all.weights(), none.weights());
    assert_eq!(all.weights(), some.weights());
}

#[test]
fn logps_from_sampling_are_those_of_a_pass_of_their_own() {
    let folder = Folder::new();
    let split = "--set train.per_device_train_batch_size=16 --set train.gradient_accumulation_steps=3";
    let args = format!("{CAPO} {FOUR_STEPS} {split} {AS_IT_IS}");
    let own = folder.train("own", &args);
    let sampled = folder.train("sampled", &format!("{args} --set train.score_at_sampling=true"));
    for name in ["reward", "num_tokens", "completions/mean_length", "mask/rejection_rate", "capo.curvature/rows"] {
        assert_eq!(own.metric(name), sampled.metric(name), "{name}");
    }
    assert!(sampled.metric("mask/rejection_rate").iter().any(|&rate| rate > 0.0), "the mask rejects something");
    let difference = own.largest_difference(&sampled);
    assert!(difference < SPLIT_BOUND, "{difference:e}");
}

#[test]
fn logps_from_sampling_need_the_samplers_distribution() {
    let folder = Folder::new();
    let message = |set: &str| {
        let args = format!("{FOUR_STEPS} {AS_IT_IS} --set train.score_at_sampling=true {set}");
        folder.host(&format!("train {args} --output-dir run")).refused()
    };
    insta::assert_snapshot!(message("--set rollout.top_k=5"), @"the settings of the default config and `--set rollout.temperature`, `--set rollout.top_k`, `--set rollout.top_p`, `--set train.score_at_sampling`, `--set rollout.top_k` do not fit together: `train.score_at_sampling` is on, but completions are drawn from another distribution than the one that the loss sees (set `rollout.temperature` to `train.loss_temperature`, `rollout.top_k` to 0, `rollout.top_p` to 1 and `rollout.dtype` to `train.dtype`, or turn it off)");
    insta::assert_snapshot!(message("--set train.num_iterations=2"), @"the settings of `--set` do not fit together: `train.score_at_sampling` is on, but 2 steps use each rollout, and all after the first have another policy (use each once, or turn it off)");
}

#[test]
fn several_steps_and_iterations_of_one_rollout() {
    let folder = Folder::new();
    let sizes =
        "--set train.per_device_train_batch_size=16 --set train.steps_per_generation=3 --set train.save_steps=0";
    let steps = folder.train("steps", &format!("{CAPO} {sizes} --set train.max_steps=6 --set eval.num_prompts=0"));
    let reused =
        "--set train.num_iterations=2 --set train.max_steps=4 --set train.save_steps=0 --set eval.num_prompts=0";
    let iterations = folder.train("iterations", &format!("{CAPO} {reused}"));
    for run in [steps, iterations] {
        assert_eq!(run.metric("step_skipped"), vec![0.0; run.metrics().len()]);
        assert!(run.metrics().iter().flat_map(|line| line.values()).all(|value| !value.is_null()));
        assert!(run.metric("grad_norm").iter().all(|norm| *norm > 0.0));
    }
}

#[test]
fn the_first_step_of_a_reused_rollout_is_a_whole_one() {
    // Every iteration's first step sees the policy that sampled: ratios of 1, as in a rollout used once.
    let folder = Folder::new();
    let once = folder.train("once", "--set train.max_steps=1 --set eval.num_prompts=0");
    let twice =
        "--set train.num_iterations=2 --set train.max_steps=2 --set train.save_steps=2 --set eval.num_prompts=0";
    let twice = folder.train("twice", twice);
    for name in ["loss", "grad_norm", "entropy", "reward"] {
        assert_eq!(once.metric(name)[0], twice.metric(name)[0], "{name}");
    }
}

#[test]
fn a_run_ends_at_its_last_step_even_within_a_rollout() {
    let folder = Folder::new();
    let reused = "--set train.num_iterations=2 --set train.save_steps=0 --set eval.num_prompts=0";
    let run = folder.train("run", &format!("{reused} --set train.max_steps=3"));
    assert_eq!(run.metrics().len(), 3);
    assert_eq!(run.checkpoints(), [3]);
}
