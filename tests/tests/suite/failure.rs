//! A run that ends with an error: the checkpoint that it saves, and the step from which its error
//! says that it can go on.

use insta::assert_snapshot;
use tests::{Folder, RunDir};

const FOUR_STEPS: &str =
    "--set train.max_steps=4 --set train.save_steps=0 --set eval.num_prompts=4";

/// The settings of a run without checkpoints before its end, with these masks.
fn masks(masks: &str) -> String {
    format!("--plugin libmisbehave.so --set mask=[{masks}] {FOUR_STEPS}")
}

fn sinner(sin: &str) -> String {
    format!("{{use=\"misbehave.mask\",sin=\"{sin}\",at_step=2}}")
}

/// The error of a run that fails in its third step. Resumed without the sin, the run must end like
/// one that never had it.
fn failed(args: &str) -> (String, Vec<u64>) {
    let folder = Folder::new();
    let sentence = folder.attempt("run", args).failed();
    let saved = folder.run_dir("run").checkpoints();
    let folder = folder.env("MISBEHAVE_OFF", "1");
    let clean: RunDir = folder.train("clean", args);
    folder.resume("run").assert_same_files(&clean);
    (sentence, saved)
}

#[test]
fn saves_if_a_component_fails_before_the_weights_change() {
    // The first mask counts its calls, and has counted one call of the failing step. The saved
    // state is that of the last whole step.
    let stateful = "{use=\"misbehave.mask\",sin=\"stateful\"}";
    let (sentence, saved) = failed(&masks(&format!("{stateful},{}", sinner("panic"))));
    assert_snapshot!(sentence, @"the run stopped after step 2 (go on with `host train --resume run`): component `misbehave.mask#2`: panicked in `mask`: mask panics at step 2");
    assert_eq!(saved, [2]);
}

#[test]
fn does_not_save_if_a_component_fails_after_the_weights_changed() {
    let (sentence, saved) = failed(&masks(&sinner("error_in_step_end")));
    assert_snapshot!(sentence, @"the run stopped after step 2, without a checkpoint (`host train --resume run` begins again at step 1): component `misbehave.mask`: step_end gives up (as it was told to)");
    assert_eq!(saved, [0; 0]);
}

#[test]
fn does_not_save_large_states_after_a_call() {
    let growing = "{use=\"misbehave.mask\",sin=\"growing\"}";
    let folder = Folder::new();
    let args = masks(&format!("{growing},{}", sinner("error")));
    assert_snapshot!(folder.attempt("run", &args).failed(), @"the run stopped after step 2, without a checkpoint (`host train --resume run` begins again at step 1): component `misbehave.mask#2`: mask gives up (as it was told to)");
    assert!(folder.run_dir("run").checkpoints().is_empty());
}

#[test]
fn saves_large_states_before_the_first_call() {
    let growing = "{use=\"misbehave.mask\",sin=\"growing\"}";
    let folder = Folder::new();
    // Weights without a finite logit: the next rollout breaks before any component is called.
    let args = format!(
        "{} --set train.learning_rate=1e30",
        masks(&format!("{growing},{growing}"))
    );
    let sentence = folder.attempt("run", &args).failed();
    assert_snapshot!(sentence, @"the run stopped after step 2 (go on with `host train --resume run`): cannot sample token 1 of completion 0: the model produced a logit that is not finite (lower the learning rate)");
    assert_eq!(folder.run_dir("run").checkpoints(), [2]);
    assert_eq!(folder.host("train --resume run").failed(), sentence);
}

/// The second step is the first whose learning rate is not 0. The last good checkpoint stays, and
/// with the advice of the error the run goes on.
#[test]
fn never_saves_weights_that_are_not_finite() {
    let folder = Folder::new();
    let schedule = "--set train.lr_scheduler_type=constant_with_warmup --set train.warmup_ratio=0.5 --set train.max_steps=4";
    let saves = "--set train.save_steps=1 --set train.save_total_limit=1 --set eval.num_prompts=0";
    let rates = "--set train.learning_rate=1e39 --set train.weight_decay=0.1";
    let sentence = folder
        .attempt("run", &format!("{schedule} {saves} {rates}"))
        .failed();
    assert_snapshot!(sentence, @"the run stopped after step 1 (go on with `host train --resume run`): step 2 makes numbers of `lm_head.weight` infinite or NaN (lower `train.learning_rate` or `train.weight_decay` in the run's `config.toml`, and resume with `--allow-changed-config`)");
    let run = folder.run_dir("run");
    assert_eq!(run.checkpoints(), [1]);
    assert_eq!(folder.host("train --resume run").failed(), sentence);
    let lowered = |line: &str| {
        if line.starts_with("learning_rate") {
            "learning_rate = 1e-4"
        } else {
            line
        }
        .to_owned()
    };
    let settings: Vec<String> = run.text("config.toml").lines().map(lowered).collect();
    folder.write("run/config.toml", settings.join("\n"));
    folder.said("train --resume run --allow-changed-config");
    assert_eq!(run.checkpoints(), [4]);
}

#[test]
fn a_last_step_that_is_not_finite_leaves_no_model() {
    let last = "--set train.max_steps=1 --set eval.num_prompts=0 --set train.lr_scheduler_type=constant --set train.warmup_ratio=0";
    for (name, keys) in [
        ("adamw", "--set train.learning_rate=1e38"),
        (
            "sgd",
            "--set train.optimizer=sgd --set train.learning_rate=1e45",
        ),
        (
            "adapter",
            "--set model.use_peft=true --set train.learning_rate=1e39",
        ),
        (
            "decay",
            "--set train.learning_rate=1e10 --set train.weight_decay=1e30",
        ),
    ] {
        let folder = Folder::new();
        let sentence = folder.attempt("run", &format!("{last} {keys}")).failed();
        assert!(
            sentence.contains("step 1 makes numbers of `"),
            "{name}: {sentence}"
        );
        assert!(folder.run_dir("run").checkpoints().is_empty(), "{name}");
    }
    // Each gradient is finite, but not its square, which the optimizer keeps.
    let folder = Folder::new();
    let large =
        "--set train.max_grad_norm=0 --set train.entropy_coef=1e25 --set train.learning_rate=1e-4";
    let sentence = folder.attempt("run", &format!("{last} {large}")).failed();
    assert_snapshot!(sentence, @"the run stopped after step 0 (go on with `host train --resume run`): the gradients of step 1 are too large for the optimizer's `exp_avg_sq/lm_head.weight` (set `train.max_grad_norm` to 1 in the run's `config.toml`, and resume with `--allow-changed-config`)");
}
