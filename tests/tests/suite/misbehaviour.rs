//! Components that break the rules: the error names them, nothing aborts, and the run can go on.

use std::fmt::Write;
use std::sync::OnceLock;

use capo_plugin::Point as At;
use host::check::host_metrics;
use insta::assert_snapshot;
use tests::{Folder, RunDir};

use crate::FOUR_STEPS;
use crate::step_controls::fresh;

/// Where a sin is committed.
#[derive(Clone, Copy)]
pub(crate) enum Point {
    Reward,
    Advantage,
    Objective,
    Mask,
    Weight,
    Control,
    Environment,
}

/// The settings of a run whose component at `point` commits `sin` in its third step.
pub(crate) fn settings(point: Point, sin: &str) -> String {
    let table = |name: &str| format!("{{use=\"misbehave.{name}\",sin=\"{sin}\",at_step=2}}");
    let set = match point {
        Point::Reward => format!("reward=[{}]", table("reward")),
        Point::Advantage => format!("advantage={}", table("advantage")),
        Point::Objective => format!("objective={}", table("objective")),
        Point::Mask => format!("mask=[{}]", table("mask")),
        Point::Weight => format!("weight=[{}]", table("weight")),
        Point::Control => format!("step_control=[{}]", table("control")),
        Point::Environment => format!("environment={}", table("environment")),
    };
    format!("--plugin libmisbehave.so --set {set} --set train.save_steps=1 {FOUR_STEPS}")
}

/// A whole run of the same component without the sin, and its folder.
pub(crate) fn clean(point: Point) -> &'static RunDir {
    static CLEAN: [OnceLock<(Folder, RunDir)>; 7] = [const { OnceLock::new() }; 7];
    let make = || {
        let folder = Folder::new();
        let run = folder.train("clean", &settings(point, "none"));
        (folder, run)
    };
    &CLEAN[point as usize].get_or_init(make).1
}

/// The error of a run that commits `sin` in its third step. Asserts that the run goes on without
/// the sin, and that nothing is lost.
pub(crate) fn committed(point: Point, sin: &str) -> String {
    committed_with(point, sin, "")
}

/// Like `committed`, for a run with these arguments.
pub(crate) fn committed_with(point: Point, sin: &str, args: &str) -> String {
    let folder = Folder::new();
    let outcome = folder.attempt("run", &format!("{} {args}", settings(point, sin)));
    let run = folder.run_dir("run");
    assert_eq!(run.checkpoints().last(), Some(&2), "{sin}: {outcome:#?}");
    let sentence = outcome.failed();
    let folder = folder.env("MISBEHAVE_OFF", "1");
    folder.resume("run").assert_same(clean(point));
    sentence
}

/// One line per sin.
pub(crate) fn all_committed(point: Point, sins: &str) -> String {
    sins.split(' ').fold(String::new(), |mut text, sin| {
        writeln!(text, "{sin}: {}", committed(point, sin)).unwrap();
        text
    })
}

#[test]
fn rewards() {
    let sins = "panic panic_in_save error nan infinity short_tokens reserved_name";
    assert_snapshot!(all_committed(Point::Reward, sins));
}

#[test]
fn environments() {
    let sins = "panic panic_in_save error error_in_save nan infinity seven many_names long_name";
    assert_snapshot!(all_committed(Point::Environment, sins));
    Folder::new().assert_resumes(&settings(Point::Environment, "stateful"), [1, 3]);
}

#[test]
fn advantages() {
    let sins = "panic panic_in_save error nan infinity padding reserved_name";
    assert_snapshot!(all_committed(Point::Advantage, sins));
}

#[test]
fn objectives() {
    let sins =
        "panic error nan_loss nan_derivative infinite_derivative padding_loss padding_derivative";
    assert_snapshot!(all_committed(Point::Objective, sins));
}

#[test]
fn masks_that_panic() {
    let sins =
        "panic panic_without_words panic_in_step_end panic_in_save panic_with_bomb poisoned_lock";
    assert_snapshot!(all_committed(Point::Mask, sins));
}

#[test]
fn masks_that_break_other_rules() {
    let sins = "error error_in_step_end error_in_save revive seven short_tokens reserved_name many_names long_name";
    assert_snapshot!(all_committed(Point::Mask, sins));
}

#[test]
fn masks_whose_creation_panics() {
    let told = ["panic_on_creation", "panic_in_inputs", "panic_twice"].map(|sin| {
        let folder = Folder::new();
        let outcome = folder.attempt("run", &settings(Point::Mask, sin));
        assert!(
            !folder.path().join("run").exists(),
            "a refused run leaves nothing behind"
        );
        outcome.sentence(2)
    });
    assert_snapshot!(told.join("\n"), @r#"
    `[[mask]]` with `use = "misbehave.mask"`: panicked while it was created: creation panics
    `[[mask]]` with `use = "misbehave.mask"`: panicked while it was created: inputs panics
    `[[mask]]` with `use = "misbehave.mask"`: panicked while it was created: inputs panics
    "#);
}

#[test]
fn weights() {
    let sins = "panic panic_in_step_end panic_in_save error error_in_step_end negative nan revive reserved_name \
        short_tokens";
    assert_snapshot!(all_committed(Point::Weight, sins));
    // If the product of several weights overflows, the error is the host's.
    let huge = "{use=\"misbehave.weight\",sin=\"huge\"}";
    let outcome = Folder::new().attempt(
        "run",
        &format!("--plugin libmisbehave.so --set weight=[{huge},{huge}] {FOUR_STEPS}"),
    );
    assert_snapshot!(outcome.failed().split_once("): ").unwrap().1, @"the weights of completion 0, token 0 multiply to more than 3.4028235e38 (lower one of them)");
}

#[test]
fn survives_a_panic_in_drop() {
    let folder = Folder::new();
    let outcome = folder
        .attempt("run", &settings(Point::Mask, "panic_in_drop"))
        .succeeded();
    assert!(outcome.stderr.contains("drop panics"), "{outcome:#?}");
    folder.run_dir("run").assert_same(clean(Point::Mask));
    // The same holds if the run fails for another reason.
    let broken = format!(
        "{} --set advantage={{use=\"misbehave.advantage\",sin=\"error\"}}",
        settings(Point::Mask, "panic_in_drop")
    );
    let outcome = folder.attempt("broken", &broken);
    assert!(outcome.stderr.contains("drop panics"), "{outcome:#?}");
    assert!(
        outcome
            .failed()
            .contains("`misbehave.advantage`: estimate gives up"),
        "{outcome:#?}"
    );
}

#[test]
fn a_panic_in_load_refuses_the_resume() {
    let folder = Folder::new();
    folder.train(
        "run",
        &format!("--stop-after 2 {}", settings(Point::Mask, "panic_in_load")),
    );
    assert_snapshot!(folder.host("train --resume run").sentence(2), @"checkpoint `run/checkpoints/step-000002` cannot be used: component `misbehave.mask`: panicked in `load`: load panics");
    let folder = folder.env("MISBEHAVE_OFF", "1");
    folder.resume("run").assert_same(clean(Point::Mask));
}

#[test]
fn numbers_that_are_not_finite_become_null() {
    let folder = Folder::new();
    let outcome = folder
        .attempt("run", &settings(Point::Mask, "nan_records"))
        .succeeded();
    assert_snapshot!(outcome.stderr.trim_end());
    let run = folder.run_dir("run");
    assert_eq!(
        run.metrics()[2]["misbehave.mask/nan"],
        serde_json::Value::Null
    );
    assert_eq!(run.weights(), clean(Point::Mask).weights());
}

#[test]
fn components_see_the_moments_of_the_last_layer() {
    let folder = Folder::new();
    folder
        .train("run", &settings(Point::Mask, "optimizer_state"))
        .assert_same(clean(Point::Mask));
    // A model with a tied head has no separate moments of the last layer.
    let config = folder.text("run/checkpoints/step-000004/config.json");
    let config = config.replace(
        "\"tie_word_embeddings\": false",
        "\"tie_word_embeddings\": true",
    );
    folder.write_tokenizer("tied");
    folder.write("tied/config.json", config);
    let sft = "sft --output-dir tied-model --set train.max_steps=1 --set eval.num_prompts=0 --set train.per_device_train_batch_size=2 \
        --set model.config_name_or_path=tied";
    folder.said(sft);
    let tied = format!(
        "--set model.model_name_or_path=tied-model {}",
        settings(Point::Mask, "optimizer_state")
    );
    assert_snapshot!(folder.refused(&format!("train {tied}")), @"component `misbehave.mask` asks for the optimizer's state of the last layer, but the model ties it to the embedding, whose state mixes both (use a model with `tie_word_embeddings = false`, or the component's own moments)");
}

#[test]
fn skips_the_step_of_a_wholly_rejected_batch() {
    let folder = Folder::new();
    let run = folder.train(
        "step",
        &format!(
            "{} --set train.save_total_limit=0",
            settings(Point::Mask, "reject_step")
        ),
    );
    assert_eq!(run.metric("step_skipped"), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(run.metric("mask/rejection_rate"), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(
        run.metric("misbehave.mask/rejection_rate"),
        [0.0, 0.0, 1.0, 0.0]
    );
    assert_eq!(
        run.metric("misbehave.mask/rejected_gradient_share"),
        [0.0, 0.0, 1.0, 0.0]
    );
    assert_eq!(run.metric("loss")[2], 0.0);
    let nulls = run
        .metrics()
        .iter()
        .flat_map(|line| line.values())
        .filter(|value| value.is_null())
        .count();
    assert_eq!(nulls, 0, "a skipped step has no NaN");
    assert_ne!(run.weights(), clean(Point::Mask).weights());
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let after = |step: u64| folder.bytes(&format!("step/checkpoints/step-00000{step}/{file}"));
        assert!(
            after(2) == after(3) && after(3) != after(4),
            "{file}: a skipped step changes nothing"
        );
    }
}

#[test]
fn a_run_with_only_skipped_steps_succeeds() {
    let folder = Folder::new();
    let outcome = folder
        .attempt("run", &settings(Point::Mask, "reject_all"))
        .succeeded();
    assert!(
        outcome.stdout.contains("steps skipped 4"),
        "{}",
        outcome.stdout
    );
    assert_snapshot!(outcome.stderr.trim_end(), @"warning: step 3: every token was rejected in the last 3 steps, most by `misbehave.mask`, so that nothing is learned (loosen `misbehave.mask`, whose keys `host plugins --verbose --plugin libmisbehave.so` lists; docs/masks.md)");
    assert!(
        !outcome.stdout.contains("never rejected"),
        "{}",
        outcome.stdout
    );
    let run = folder.run_dir("run");
    assert_eq!(run.metric("step_skipped"), [1.0; 4]);
    assert_eq!(run.tensors("model.safetensors"), fresh());
}

#[test]
fn names_masks_that_never_rejected() {
    let outcome = Folder::new()
        .host(&format!("train {}", settings(Point::Mask, "none")))
        .succeeded();
    let line = outcome
        .stdout
        .lines()
        .find(|line| line.starts_with("never rejected"))
        .unwrap();
    assert_snapshot!(line, @"never rejected     misbehave.mask: no token in 4 steps (tighten `misbehave.mask`, whose keys `host plugins --verbose --plugin libmisbehave.so` lists)");
    assert_eq!(outcome.stderr, "");
}

#[test]
fn refuses_a_name_that_another_component_records() {
    let table =
        |point: &str| format!("--set {point}={{use=\"misbehave.{point}\",sin=\"shared_name\"}}");
    let both = format!(
        "--plugin libmisbehave.so {} {}",
        table("advantage"),
        table("objective")
    );
    let outcome = Folder::new().attempt("run", &format!("{both} {FOUR_STEPS}"));
    assert_snapshot!(outcome.failed().split_once("): ").unwrap().1, @"component `misbehave.objective`: recorded `spread`, as component `misbehave.advantage` does (rename one of them)");
}

#[test]
fn documents_every_metric_of_the_host() {
    let text = [Point::Mask, Point::Weight]
        .map(|point| std::fs::read_to_string(clean(point).path().join("metrics.jsonl")).unwrap())
        .concat();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<tests::run_dir::Line>(line).unwrap());
    // Names that an objective records are not the host's.
    let own = lines
        .flat_map(|line| line.into_keys())
        .filter(|name| !name.starts_with("clip_ratio/") && name != "kl");
    let unknown: Vec<String> = own
        .filter(|name| *name != "step" && !host_metrics::has(At::Advantage, name))
        .collect();
    assert!(
        unknown.is_empty(),
        "to be listed in configs/README.md: {unknown:?}"
    );
}

#[test]
fn withholds_inputs_that_were_not_asked_for() {
    let folder = Folder::new();
    // Other components ask for all inputs.
    let asking = "{use=\"misbehave.mask\",sin=\"optimizer_state\"},{use=\"capo.curvature\"}";
    let components = format!(
        "--plugin libmisbehave.so --plugin libcapo.so --set mask=[{asking},{{use=\"misbehave.mask\",sin=\"peek\"}}] \
         --set advantage={{use=\"misbehave.advantage\",sin=\"peek\"}} --set train.num_iterations=2"
    );
    let grpo = "--set objective={use=\"grpo.objective\",beta=0.1}";
    folder.said(&format!(
        "train --output-dir masks {components} {grpo} {FOUR_STEPS}"
    ));
    let own = "--set objective={use=\"misbehave.objective\",sin=\"peek\"}";
    folder.said(&format!(
        "train --output-dir objective {components} {own} {FOUR_STEPS}"
    ));
}

#[test]
fn measures_the_rejected_half_of_a_batch() {
    let run = Folder::new();
    let run = run.train("run", &settings(Point::Mask, "reject_half"));
    let shares = run.metric("misbehave.mask/rejected_gradient_share");
    assert!(
        shares.iter().all(|share| (0.1..0.9).contains(share)),
        "{shares:?}"
    );
    assert_eq!(shares, run.metric("mask/rejected_gradient_share"));
    assert!(
        run.metric("mask/rejection_rate")
            .iter()
            .all(|rate| (0.3..0.7).contains(rate))
    );
    assert_eq!(run.metric("step_skipped"), [0.0; 4]);
    assert_ne!(run.weights(), clean(Point::Mask).weights());
}
