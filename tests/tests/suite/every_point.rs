//! A plugin with a component at each point, in `host`.

use insta::assert_snapshot;
use tests::Folder;

use crate::FOUR_STEPS;

const PLUGIN: &str = "--plugin libevery_point.so";

#[test]
fn offers_what_it_registers() {
    let folder = Folder::new();
    let listed = folder.said(&format!("--verbose plugins {PLUGIN}"));
    let key = "factor (required)  # Largest surprise kept, in means of the steps before. [above 0; \
               search 1.0..50.0]";
    assert!(
        listed.contains(key) && listed.contains("asks for rollout_context, sampler_top_k"),
        "{listed}"
    );
    for id in [
        "environment",
        "reward",
        "advantage",
        "objective",
        "mask",
        "weight",
        "step-control",
    ] {
        assert!(listed.contains(&format!("  every.{id} ")), "{id}: {listed}");
    }
    let mask = format!("train {PLUGIN} --set mask=[{{use=\"every.mask\",facto=1}}]");
    assert_snapshot!(folder.refused(&mask), @r#"`[[mask]]` with `use = "every.mask"`: unknown key `facto` (did you mean `factor`?)"#);
}

#[test]
fn trains_and_resumes() {
    let args = format!(
        "{PLUGIN} --set train.num_iterations=2 --set mask.0.factor=5.0 \
         --set environment.use=every.environment {FOUR_STEPS}"
    );
    let folder = Folder::new();
    let whole = folder.assert_resumes(&args, [2]);
    assert!(
        whole
            .metric("every.mask/rejection_rate")
            .iter()
            .any(|&rate| rate > 0.0)
    );
    assert_eq!(
        whole.metric("environment/every.environment/episodes"),
        [48.0, 48.0, 96.0, 96.0]
    );
    assert_eq!(whole.metric("every.mask/steps"), [0.0, 1.0, 2.0, 3.0]);
    assert!(
        whole.metric("largest_ratio")[3] > 1.0 && whole.metric("every.mask/learning_rate")[2] > 0.0
    );
    assert!(
        whole.metric("every.weight/text_bytes")[3] > 0.0
            && whole.metric("every.weight/sampler_logps")[3] < 0.0
    );
    for name in [
        "norm",
        "fisher",
        "last_layer_kl",
        "kl",
        "kl_of_half",
        "weights",
    ] {
        assert!(
            whole.metric(&format!("every.step-control/{name}"))[3] > 0.0,
            "{name}"
        );
    }
    assert_ne!(whole.metric("every.step-control/alignment")[3], 1.0);
}
