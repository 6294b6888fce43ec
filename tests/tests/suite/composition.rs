//! Several masks in one run: each sees the tokens that earlier masks left, and reports its own
//! rejections.

use tests::artifacts::load_examples;
use tests::{Folder, RunDir, run_dir};

use crate::FOUR_STEPS;
use crate::replay::dumped;

const SURPRISE: &str = "{use=\"example.surprise-cap\",max_nats=0.4}";
const TRUNCATED: &str = "{use=\"masks.truncated\"}";

/// A run with the plugins and these masks, whose length limit cuts off some completions.
fn args(masks: &[&str]) -> String {
    let plugins = format!(
        "--plugin libmasks.so{} --set recipe=grpo",
        load_examples(&["surprise-cap"])
    );
    format!("{plugins} --set mask=[{}]", masks.join(","))
}

fn train(folder: &Folder, name: &str, masks: &[&str], extra: &str) -> RunDir {
    folder.train(
        name,
        &format!(
            "{} --set rollout.max_completion_length=12 {FOUR_STEPS} {extra}",
            args(masks)
        ),
    )
}

fn rejected(run: &RunDir, mask: &str) -> Vec<f64> {
    run.metric(&format!("{mask}/rejection_rate"))
}

#[test]
fn the_order_of_two_masks_changes_only_who_rejects() {
    let folder = Folder::new();
    let (one, other) = ([SURPRISE, TRUNCATED], [TRUNCATED, SURPRISE]);
    let first = train(&folder, "first", &one, "--dump-batches dump");
    let second = train(&folder, "second", &other, "");
    assert_eq!(first.weights(), second.weights());
    assert_eq!(rejected(&first, "mask"), rejected(&second, "mask"));
    for run in [&first, &second] {
        let (all, a, b) = (
            rejected(run, "mask"),
            rejected(run, "example.surprise-cap"),
            rejected(run, "masks.truncated"),
        );
        assert!(
            a.iter()
                .zip(&b)
                .zip(&all)
                .all(|((a, b), all)| (a + b - all).abs() < 1e-12),
            "{a:?} {b:?} {all:?}"
        );
    }
    // A token that both masks would drop is dropped by the first one.
    for mask in ["example.surprise-cap", "masks.truncated"] {
        assert_ne!(rejected(&first, mask), rejected(&second, mask), "{mask}");
    }
    let both = |early: &RunDir, late: &RunDir, mask: &str| {
        rejected(early, mask)
            .iter()
            .zip(rejected(late, mask))
            .all(|(early, late)| *early >= late)
    };
    assert!(
        both(&first, &second, "example.surprise-cap") && both(&second, &first, "masks.truncated")
    );
    // Token by token, on the batch of the first step.
    let token_mask = |out: &str, masks: &[&str]| {
        folder.said(&format!("replay {} --out {out}{}", args(masks), dumped(1)));
        run_dir::tensors(&folder.path().join(dumped(1).trim().replace("dump", out)))["token_mask"]
            .clone()
    };
    let together = token_mask("one", &one);
    assert_eq!(together, token_mask("other", &other));
    let (surprise, truncated) = (
        token_mask("surprise", &[SURPRISE]),
        token_mask("truncated", &[TRUNCATED]),
    );
    let conjunction: Vec<f32> = surprise
        .iter()
        .zip(&truncated)
        .map(|(a, b)| a * b)
        .collect();
    assert_eq!(together, conjunction);
    assert!(together != surprise && together != truncated);
}

#[test]
fn a_mask_sees_the_tokens_that_are_left() {
    let folder = Folder::new();
    let surprise = "{use=\"example.surprise-cap\",max_nats=0.1}";
    let run = train(
        &folder,
        "run",
        &[
            surprise,
            "{use=\"masks.entropy-quantile\",top_entropy_quantile=0.3}",
        ],
        "",
    );
    // The most surprising tokens have a high entropy. If the mask saw them too, it would drop a
    // larger share.
    let (before, share) = (
        rejected(&run, "example.surprise-cap"),
        rejected(&run, "masks.entropy-quantile"),
    );
    for (before, share) in before.iter().zip(share) {
        assert!(*before > 0.05, "{before}");
        // Completions of one prompt begin with the same tokens and entropies. Tokens of equal
        // entropy are kept.
        assert!(
            (share - 0.7 * (1.0 - before)).abs() < 0.025,
            "{share} of what {before} left"
        );
    }
}

#[test]
fn a_component_used_twice_reports_twice() {
    let folder = Folder::new();
    let (mild, strict) = ("{use=\"example.surprise-cap\",max_nats=1.0}", SURPRISE);
    let run = train(&folder, "run", &[mild, strict], "--stop-after 2");
    let alone = train(&folder, "alone", &[strict], "--stop-after 2");
    assert_eq!(run.weights(), alone.weights());
    let (first, second) = (
        rejected(&run, "example.surprise-cap"),
        rejected(&run, "example.surprise-cap#2"),
    );
    assert_eq!([first.len(), second.len()], [2; 2]);
    let sums: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
    assert!(
        sums.iter()
            .zip(rejected(&alone, "mask"))
            .all(|(sum, all)| (sum - all).abs() < 1e-12)
    );
    assert!(first.iter().chain(&second).any(|&rate| rate > 0.0));
    // The second mask never saw the tokens with larger surprises.
    let largest = run.metric("example.surprise-cap#2/largest_nats");
    assert!(
        largest.len() == 2 && largest.iter().all(|&nats| nats <= 1.0),
        "{largest:?}"
    );
    let whole = train(&folder, "whole", &[mild, strict], "");
    folder.resume("run").assert_same(&whole);
}
