//! SGD, and Adam's second moment with the gradient that masks reject.

use insta::assert_snapshot;
use tests::{Folder, RunDir};

use crate::{FOUR_STEPS, FROM_THE_FIRST_STEP, ONE_STEP, split};

const CAPO: &str = "--plugin libcapo.so";
/// A limit that rejects some tokens of some completions.
const STRICT: &str = "--set mask.0.fisher_threshold=1e-6";
const NO_LIMITS: &str = "--set mask.0.fisher_threshold=false --set mask.0.hessian_threshold=false";
const BOTH: &str = "--set train.second_moment=kept_and_rejected";
const SGD: &str =
    "--set train.optimizer=sgd --set train.sgd_momentum=0.9 --set train.learning_rate=0.05";

/// The metrics that only `second_moment = "kept_and_rejected"` has.
const ADDED: [&str; 3] = [
    "rejected_grad_norm",
    "grad_norm_unmasked",
    "second_pass_completions",
];

#[test]
fn equals_plain_adamw_if_nothing_is_rejected() {
    let folder = Folder::new();
    let args = format!("{CAPO} {NO_LIMITS} {FOUR_STEPS}");
    let (plain, both) = (
        folder.train("plain", &args),
        folder.train("both", &format!("{args} {BOTH}")),
    );
    // Model, optimizer, and the mask's own moments.
    assert_eq!(plain.files(), both.files());
    assert_eq!(both.metric("rejected_grad_norm"), [0.0; 4]);
    assert_eq!(both.metric("second_pass_completions"), [0.0; 4]);
    assert_eq!(both.metric("grad_norm_unmasked"), plain.metric("grad_norm"));
    let mut metrics = both.metrics();
    metrics
        .iter_mut()
        .for_each(|line| line.retain(|name, _| !ADDED.contains(&name.as_str())));
    assert_eq!(metrics, plain.metrics());
}

#[test]
fn remembers_rejected_gradients_and_shortens_the_step() {
    let folder = Folder::new();
    // One step on the same batch. The rate is above 0, because at 0 no token has an effect.
    let args = format!("{CAPO} {STRICT} {FROM_THE_FIRST_STEP} {ONE_STEP}");
    let (plain, both) = (
        folder.train("plain", &args),
        folder.train("both", &format!("{args} {BOTH}")),
    );
    for name in ["loss", "grad_norm", "mask/rejection_rate"] {
        assert_eq!(plain.metric(name), both.metric(name), "{name}");
    }
    assert!(
        both.metric("rejected_grad_norm")[0] > 0.0 && both.metric("grad_norm_unmasked")[0] > 0.0
    );
    assert!(
        both.metric("second_pass_completions")
            .iter()
            .all(|&count| count > 0.0 && count <= 48.0)
    );
    let start = folder.train("start", &format!("{ONE_STEP} --set train.learning_rate=0"));
    let moved = |run: &RunDir| -> f64 {
        let (from, to) = (
            start.tensors("model.safetensors"),
            run.tensors("model.safetensors"),
        );
        let squares = from
            .values()
            .flatten()
            .zip(to.values().flatten())
            .map(|(a, b)| f64::from(a - b).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let (plain, both) = (moved(&plain), moved(&both));
    assert!(
        both > 0.0 && both < 0.9 * plain,
        "a step of {both:e} against {plain:e}"
    );
}

#[test]
fn the_norm_of_both_gradients_equals_that_without_a_mask() {
    let folder = Folder::new();
    for coefficient in [0, 1] {
        let args = format!(
            "{CAPO} {BOTH} {FROM_THE_FIRST_STEP} {ONE_STEP} --set train.entropy_coef={coefficient}"
        );
        let run = |name: &str, limit: &str| {
            folder.train(&format!("{name}{coefficient}"), &format!("{args} {limit}"))
        };
        let (some, all) = (run("some", STRICT), run("all", NO_LIMITS));
        let (sum, expected) = (
            some.metric("grad_norm_unmasked")[0],
            all.metric("grad_norm")[0],
        );
        assert!(
            (sum - expected).abs() < 1e-4 * expected,
            "{coefficient}: {sum} {expected}"
        );
        assert!(
            (some.metric("grad_norm")[0] - expected).abs() > 1e-2 * expected,
            "{coefficient}: nothing is rejected"
        );
    }
}

#[test]
fn a_split_batch_is_the_whole_batch() {
    let folder = Folder::new();
    let args = format!("{CAPO} {STRICT} {BOTH} {FOUR_STEPS}");
    let whole = folder.train("whole", &args);
    for size in [16, 8] {
        let split = folder.train(&format!("split{size}"), &format!("{args} {}", split(size)));
        for name in ["second_pass_completions", "mask/rejection_rate"] {
            assert_eq!(whole.metric(name), split.metric(name), "{name}");
        }
        for (a, b) in whole
            .metric("rejected_grad_norm")
            .iter()
            .zip(split.metric("rejected_grad_norm"))
        {
            assert!((a - b).abs() <= 1e-3 * b, "{a} {b}");
        }
        let difference = whole.largest_difference(&split);
        assert!(difference < 1e-6, "{difference:e}");
    }
}

#[test]
fn resumed_runs_have_the_bits_of_uninterrupted_ones() {
    let steps = "--set train.save_steps=0 --set train.max_steps=5 --set eval.num_prompts=0";
    for optimizer in [BOTH, SGD, "--set train.optimizer=sgd"] {
        Folder::new().assert_resumes(&format!("{CAPO} {STRICT} {optimizer} {steps}"), [2]);
    }
}

#[test]
fn in_bf16() {
    for optimizer in [BOTH, SGD] {
        let run = Folder::new();
        let run = run.train(
            "run",
            &format!("{CAPO} {STRICT} {optimizer} {FOUR_STEPS} --set train.dtype=bf16"),
        );
        assert_eq!(run.metric("step_skipped"), [0.0; 4]);
        assert!(
            run.metrics()
                .iter()
                .flat_map(|line| line.values())
                .all(|value| !value.is_null())
        );
    }
}

#[test]
fn the_header_names_the_optimizer() {
    let folder = Folder::new();
    let header = |args: &str, name: &str| {
        let args = format!(
            "train --set train.max_steps=1 --set eval.num_prompts=0 --output-dir {name} {args}"
        );
        let outcome = folder.host(&args).succeeded();
        outcome
            .stdout
            .lines()
            .find(|line| line.starts_with("optimizer"))
            .unwrap_or("none")
            .to_owned()
    };
    assert_snapshot!(header("", "plain"), @"none");
    assert_snapshot!(header(&format!("{CAPO} {BOTH}"), "both"), @"optimizer  adamw, its second moment of kept and rejected gradients");
    assert_snapshot!(header(SGD, "sgd"), @"optimizer  sgd, momentum 0.9");
}

#[test]
fn refuses_a_checkpoint_of_another_optimizer() {
    let folder = Folder::new();
    folder.train("run", &format!("{FOUR_STEPS} --stop-after 2"));
    folder.replace(
        "run/config.toml",
        "optimizer = \"adamw\"",
        "optimizer = \"sgd\"",
    );
    let sentence = folder.refused("train --resume run --allow-changed-config");
    assert!(
        sentence.ends_with("(use a checkpoint of this model and this optimizer)"),
        "{sentence}"
    );
}
