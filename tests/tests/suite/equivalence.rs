//! Circumstances that must not change a run: how a component was linked, masks that do nothing,
//! threads, how the work is split.

// Linked into this executable, so that its components are built in here.
use capo as _;

use capo_loader::registry::Registry;
use host::config::{self, Draft};
use host::run::Run;
use tests::Folder;

use crate::{AS_IT_IS, FOUR_STEPS, ONE_STEP, split};

const CAPO: &str = "--plugin libcapo.so";
/// Switches off both limits of the mask.
const NO_LIMITS: &str = "--set mask.0.fisher_threshold=false --set mask.0.hessian_threshold=false";

/// Largest difference of a weight after four steps if the work is split in another way, which adds
/// floats in another order. It is a hundredth of one step at the default rate of 1e-4. The last bit
/// of a weight above 1 is 1.2e-7.
const SPLIT_BOUND: f32 = 1e-6;

#[test]
fn repetition_checkpointing_and_threads_change_no_bit() {
    let folder = Folder::new();
    let args = format!("{CAPO} {FOUR_STEPS}");
    let first = folder.train("first", &args);
    assert!(
        first
            .metric("mask/rejection_rate")
            .iter()
            .any(|&rate| rate > 0.0),
        "the mask rejects something"
    );
    first.assert_same_files(&folder.train("second", &args));
    let other = folder.train("other", &format!("{args} --set train.seed=43"));
    assert_ne!(first.weights(), other.weights(), "the seed matters");
    let again = folder.train(
        "again",
        &format!("{args} --set train.gradient_checkpointing=true"),
    );
    assert_eq!(
        first.files(),
        again.files(),
        "activations that are computed again"
    );
    for threads in ["1", "2", "5"] {
        let folder = Folder::new()
            .env("RAYON_NUM_THREADS", threads)
            .env("CANDLE_NUM_THREADS", threads);
        folder.train("run", &args).assert_same_files(&first);
    }
}

#[test]
fn linked_components_equal_loaded_ones() {
    let folder = Folder::new();
    let loaded = folder.train("loaded", &format!("{CAPO} {FOUR_STEPS}"));
    let registry = Registry::open(&[]).unwrap();
    let linked = registry
        .offers()
        .into_iter()
        .find(|offer| offer.id == "capo.curvature")
        .expect("capo is linked in");
    assert_eq!(linked.origin.to_string(), "built in");
    let sets = ["recipe=capo", "train.max_steps=4", "eval.num_prompts=16"].map(String::from);
    let mut config = config::resolve(
        &registry,
        Draft::read(None, config::DEFAULT, &sets).unwrap(),
    )
    .unwrap()
    .config;
    config.train.output_dir = Some(folder.path().join("linked"));
    let mut run = Run::start(config, &registry).unwrap();
    host::train::train(&mut run, &mut (), None, &false.into()).unwrap();
    loaded.assert_same_files(&folder.run_dir("linked"));
}

#[test]
fn a_mask_that_keeps_all_changes_no_bit() {
    let folder = Folder::new();
    let none = folder.train("none", FOUR_STEPS);
    let mask = "--plugin libmisbehave.so --set mask=[{use=\"misbehave.mask\",sin=\"none\"}]";
    let kept = folder.train("kept", &format!("{mask} {FOUR_STEPS}"));
    assert_eq!(none.weights(), kept.weights());
    let mut metrics = kept.metrics();
    metrics
        .iter_mut()
        .for_each(|line| line.retain(|name, _| !name.starts_with("misbehave.")));
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
fn a_split_batch_is_the_whole_batch() {
    let folder = Folder::new();
    let args = format!("{CAPO} {FOUR_STEPS}");
    let whole = folder.train("whole", &format!("{args} {}", split(48)));
    assert!(
        whole
            .metric("mask/rejection_rate")
            .iter()
            .any(|&rate| rate > 0.0),
        "the mask rejects something"
    );
    // The last of these micro-batches have one group each.
    for size in [16, 8] {
        let split = folder.train(&format!("split{size}"), &format!("{args} {}", split(size)));
        for name in [
            "reward",
            "num_tokens",
            "completions/mean_length",
            "mask/rejection_rate",
            "capo.curvature/rows",
        ] {
            assert_eq!(whole.metric(name), split.metric(name), "{name}");
        }
        let difference = whole.largest_difference(&split);
        assert!(difference < SPLIT_BOUND, "{difference:e}");
    }
}

#[test]
fn before_the_gradient_no_split_changes_a_bit() {
    let folder = Folder::new();
    let args = format!("{CAPO} {ONE_STEP}");
    let whole = folder.train("whole", &format!("{args} {}", split(48)));
    for size in [12, 1] {
        let split = folder.train(&format!("split{size}"), &format!("{args} {}", split(size)));
        let (ours, theirs) = (&whole.metrics()[0], &split.metrics()[0]);
        // Prompts that several micro-batches share are computed in each.
        let of_gradient = |name: &str| name.contains("grad_norm") || name == "tokens/computed";
        let different = ours
            .keys()
            .filter(|name| ours[*name] != theirs[*name] && !of_gradient(name));
        assert_eq!(different.collect::<Vec<_>>(), [""; 0], "{size}");
    }
}

#[test]
fn activations_stored_for_the_backward_pass_change_no_bit() {
    let folder = Folder::new();
    let args = format!("{CAPO} {FOUR_STEPS} {}", split(8));
    let all = folder.train("all", &args);
    let none = folder.train("none", &format!("{args} --set train.activation_budget=0"));
    let some = folder.train("some", &format!("{args} --set train.activation_budget=2"));
    assert_eq!(all.weights(), none.weights());
    assert_eq!(all.weights(), some.weights());
}

#[test]
fn log_probabilities_from_sampling_equal_those_of_a_separate_pass() {
    let folder = Folder::new();
    let args = format!("{CAPO} {FOUR_STEPS} {} {AS_IT_IS}", split(16));
    let own = folder.train("own", &args);
    let sampled = folder.train(
        "sampled",
        &format!("{args} --set train.score_at_sampling=true"),
    );
    for name in [
        "reward",
        "num_tokens",
        "completions/mean_length",
        "mask/rejection_rate",
        "capo.curvature/rows",
    ] {
        assert_eq!(own.metric(name), sampled.metric(name), "{name}");
    }
    assert!(
        sampled
            .metric("mask/rejection_rate")
            .iter()
            .any(|&rate| rate > 0.0),
        "the mask rejects something"
    );
    let difference = own.largest_difference(&sampled);
    assert!(difference < SPLIT_BOUND, "{difference:e}");
}

#[test]
fn the_first_step_of_a_reused_rollout_equals_a_whole_one() {
    // The first step of a rollout sees the policy that sampled it. Its ratios are 1, as in a
    // rollout that is used once.
    let folder = Folder::new();
    let once = folder.train("once", ONE_STEP);
    let reused = "--set train.num_iterations=2 --set train.max_steps=3 --set train.save_steps=0 --set eval.num_prompts=0";
    let reused = folder.train("reused", reused);
    for name in ["loss", "grad_norm", "entropy", "reward"] {
        assert_eq!(once.metric(name)[0], reused.metric(name)[0], "{name}");
    }
    // A run ends at its last step, even within a rollout.
    assert_eq!((reused.metrics().len(), reused.checkpoints()), (3, vec![3]));
}
