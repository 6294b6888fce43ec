//! Rewards from plugins: in training, in evaluation, in checkpoints, and beside the built-in one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;
use serde_json::json;
use tests::{Folder, RunDir, to_json_lines};

use crate::{FOUR_STEPS, ONE_STEP};

const PLUGIN: &str = "--plugin librewarding.so";

/// A dataset of two levels, and a config that trains on it with `[[reward]]` tables.
fn folder(rewards: &str) -> Folder {
    let folder = Folder::new();
    let row = |i: u32| {
        let level = if i.is_multiple_of(2) { "easy" } else { "hard" };
        json!({"prompt": format!("{}+{}=", 100 + i, 200 + i), "answer": 300 + 2 * i, "level": level})
    };
    let rows = |range: std::ops::Range<u32>| to_json_lines(range.map(row));
    folder.write("train.jsonl", rows(0..40));
    folder.write("eval.jsonl", rows(40..60));
    let model = "[model]\nmodel_name_or_path = \"embedded:tiny-arithmetic\"\n";
    let data = "[data]\ndataset_name = \"train.jsonl\"\neval_dataset_name = \"eval.jsonl\"\nmax_prompt_length = 16\n";
    let rest = "[rollout]\nmax_completion_length = 24\n[train]\nper_device_train_batch_size = 48\n[eval]\nnum_prompts = 20\n";
    folder.write("run.toml", format!("{model}{data}{rest}{rewards}"));
    folder
}

const LEVELLED: &str = "[[reward]]\nuse = \"rewarding.levelled\"\nlevel = \"easy\"\n";

#[test]
fn columns_reach_training_and_evaluation() {
    let folder = folder(LEVELLED);
    let run = folder.train(
        "run",
        &format!("--config run.toml {PLUGIN} --set train.max_steps=3"),
    );
    let line = &run.metrics()[0];
    let share = line["rewards/rewarding.levelled/mean"].as_f64().unwrap();
    assert!(
        (share * 6.0).fract() == 0.0 && share > 0.0 && share < 1.0,
        "whole groups of six prompts: {share}"
    );
    assert_eq!(line["rewards/rewarding.levelled/mean"], line["reward"]);
    assert_eq!(line["rewards/rewarding.levelled/group_size"], 8.0);
    assert_eq!(
        line["rewards/rewarding.levelled/length/max"],
        line["completions/max_length"]
    );
    // Half of the held-out rows are easy. An evaluation is not a training rollout, so its numbers
    // are not recorded for a step.
    assert_eq!(run.metric("eval_accuracy"), [0.5]);
    assert_eq!(
        run.metric("rewards/rewarding.levelled/rollouts"),
        [1.0, 2.0, 3.0]
    );
    assert_eq!(
        run.metric("rewards/rewarding.levelled/step"),
        [0.0, 1.0, 2.0]
    );
    let eval = folder
        .host(&format!(
            "eval --config run.toml {PLUGIN} --output graded.jsonl"
        ))
        .succeeded();
    assert_snapshot!(eval.stdout, @"
    right      answers to which `rewarding.levelled` gives 1 (if it gives anything but -1, 0 and 1, there is no accuracy; with `--set eval.reward=rewarding.levelled` every answer above 0 is right)
    held-out accuracy 50.0%  reward 0.500  (20 prompts, greedy)
    ");
    let graded = folder.json_lines("graded.jsonl");
    assert_eq!(
        graded
            .iter()
            .map(|line| line["reward"].clone())
            .collect::<Vec<_>>(),
        [1.0, 0.0].repeat(10)
    );
}

#[test]
fn a_plugin_can_copy_a_built_in_reward() {
    let folder = Folder::new();
    let built_in = folder.train("built-in", FOUR_STEPS);
    let plugin = folder.train(
        "plugin",
        &format!("{PLUGIN} --set reward=[{{use=\"rewarding.levelled\"}}] {FOUR_STEPS}"),
    );
    assert_eq!(built_in.weights(), plugin.weights());
    let mean = |run: &RunDir, id: &str| run.metric(&format!("rewards/{id}/mean"));
    assert_eq!(
        mean(&built_in, "exact_match"),
        mean(&plugin, "rewarding.levelled")
    );
    // Two tables add up with their weights: two halves give the whole reward.
    let halves = "[{use=\"exact_match\",weight=0.5},{use=\"rewarding.levelled\",weight=0.5}]";
    let both = folder.train(
        "both",
        &format!("{PLUGIN} --set reward={halves} {FOUR_STEPS}"),
    );
    assert_eq!(built_in.weights(), both.weights());
    assert_eq!(
        mean(&both, "exact_match"),
        mean(&both, "rewarding.levelled")
    );
}

/// A program that answers each line with a quarter.
const QUARTERS: &str = "#!/bin/sh\nwhile read -r line; do echo 0.25; done\n";

/// A program `grade` in the folder.
fn with_program(folder: &Folder) {
    folder.write("grade", QUARTERS);
    let path = folder.path().join("grade");
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn built_in_rewards_score_a_run() {
    let folder = folder(
        "[[reward]]\nuse = \"exact_match\"\n[[reward]]\nuse = \"math\"\nanchored = false\n[[reward]]\nuse = \"number\"\n\
         [[reward]]\nuse = \"regex\"\npattern = \"=\"\n[[reward]]\nuse = \"regex\"\npattern = \"x\"\n\
         [[reward]]\nuse = \"soft_overlong\"\nsoft_punish_cache = 24\n[[reward]]\nuse = \"format\"\n\
         [[reward]]\nuse = \"command\"\ncommand = [\"./grade\"]\nconcurrency = 3\n",
    );
    with_program(&folder);
    let run = folder.train(
        "run",
        "--config run.toml --set train.max_steps=2 --set reward.regex#2.otherwise=0.5",
    );
    let mean = |name: &str| run.metric(&format!("rewards/{name}/mean"));
    assert_eq!(
        (mean("command"), mean("regex#2"), mean("format")),
        (vec![0.25; 2], vec![0.5; 2], vec![0.0; 2])
    );
    assert_eq!(mean("number"), mean("exact_match"));
    assert_eq!(mean("math").len(), 2);
    assert!(
        mean("soft_overlong")
            .iter()
            .all(|penalty| (-1.0..0.0).contains(penalty))
    );
    let said = folder.said("eval --config run.toml --set eval.reward=regex#2");
    assert!(said.starts_with("right      `regex#2` above 0\n"), "{said}");
}

#[test]
fn a_fractional_reward_is_not_a_right_answer() {
    let folder = folder("[[reward]]\nuse = \"command\"\ncommand = [\"./grade\"]\n");
    with_program(&folder);
    let args = "--config run.toml --plugin libcapo.so --set train.max_steps=2";
    let said = folder.said(&format!("train --output-dir run {args}"));
    let lines = |from: &[&str]| -> Vec<String> {
        said.lines()
            .filter(|line| from.iter().any(|from| line.starts_with(from)))
            .map(str::to_owned)
            .collect()
    };
    assert_snapshot!(lines(&["right", "held-out", "no signal", "never rejected"]).join("\n"), @"
    right      answers to which `command` gives 1 (if it gives anything but -1, 0 and 1, there is no accuracy; with `--set eval.reward=command` every answer above 0 is right)
    held-out reward 0.250 before training
    held-out reward    0.250 -> 0.250  (20 prompts, greedy)
    no signal          the completions of each prompt earned alike in all 2 steps, so that nothing was learned from rewards (try easier or harder prompts, or more answers to each: `--set rollout.num_generations=16`)
    ");
    let run = folder.run_dir("run");
    let first = &run.lines()[0];
    assert_eq!(
        (&first["eval_reward"], &first["eval_rewards/command/mean"]),
        (&0.25.into(), &0.25.into())
    );
    assert!(
        run.lines()
            .iter()
            .all(|line| !line.contains_key("eval_accuracy"))
    );
    let eval = |more: &str| folder.said(&format!("eval --config run.toml {more}"));
    assert!(eval("").ends_with("\nheld-out reward 0.250  (20 prompts, greedy)\n"));
    // The run's own settings, plugin and program are enough.
    assert!(
        folder
            .said("eval --model run")
            .ends_with("\nheld-out reward 0.250  (20 prompts, greedy)\n")
    );
    assert!(
        folder
            .said("eval --config run/config.toml")
            .contains("\nheld-out reward 0.250 ")
    );
    assert!(eval("--model run").contains("\nheld-out reward 0.250 "));
    // The program is refused if another user may have written it.
    fs::set_permissions(run.path(), Permissions::from_mode(0o777)).unwrap();
    assert_snapshot!(folder.refused("eval --model run"), @"the run is not yours alone: `run` may be changed by any user, and `BUILD/libcapo.so`, which it names, would be loaded (give the plugins that you trust with `--plugin`, or take these with `--trust-run`)");
    for command in [
        "eval --model run --plugin libcapo.so",
        "train --resume run --plugin libcapo.so",
    ] {
        assert_eq!(
            folder.refused(command),
            "the run is not yours alone: `run` may be changed by any user, and its reward `command` would start a program (read what `run/config.toml` names, then take it with `--trust-run`)"
        );
    }
    folder.said("eval --model run --trust-run");
    fs::set_permissions(run.path(), Permissions::from_mode(0o755)).unwrap();
    let named = eval("--set eval.reward=command");
    assert_snapshot!(named, @"
    right      `command` above 0
    held-out accuracy 100.0%  reward 0.250  (20 prompts, greedy)
    ");
    // Of several rewards, the one that compares answers says it.
    let two = |more: &str| {
        eval(&format!(
            "--set reward=[{{use=\"format\"}},{{use=\"command\",command=[\"./grade\"]}}{more}]"
        ))
    };
    assert!(
        two(",{use=\"number\"}").starts_with("right      `number` above 0\nheld-out accuracy ")
    );
    assert_snapshot!(two(""), @"
    right      no reward says it (name one with `eval.reward`)
    held-out reward 0.250  format 0.000  command 0.250  (20 prompts, greedy)
    ");
    let best = "--set train.metric_for_best_model=eval_accuracy --set eval.eval_steps=1 --set reward=[{use=\"format\"},{use=\"regex\",pattern=\"1\"}]";
    assert_snapshot!(folder.refused(&format!("train {args} {best}")), @"the settings of `run.toml` and `--set train.metric_for_best_model` do not fit together: `train.metric_for_best_model` is `eval_accuracy`, but of several rewards none says which answers are right (name it with `eval.reward`)");
}

#[test]
fn a_program_that_answers_twice_ends_the_run_before_its_first_step() {
    let folder = folder("[[reward]]\nuse = \"command\"\ncommand = [\"./grade\"]\n");
    with_program(&folder);
    folder.write("grade", QUARTERS.replace("echo 0.25", "echo 1; echo 0"));
    let failed = folder
        .host("train --output-dir run --config run.toml --set eval.num_prompts=0")
        .failed();
    assert!(
        failed.starts_with("the run stopped after step 0")
            && failed.contains("`command`: `./grade` gave "),
        "{failed}"
    );
    assert!(
        folder.run_dir("run").metrics().is_empty()
            && folder.run_dir("run").checkpoints().is_empty()
    );
}

#[test]
fn the_library_is_for_other_hosts() {
    let folder = Folder::new();
    with_program(&folder);
    let keys = "--set regex.pattern=^4 --set soft_overlong.soft_punish_cache=4 --set command.command=[\"./grade\"]";
    let checked = folder.said(&format!("check libcapo_rewards.so {keys}"));
    assert!(
        checked.ends_with("0 warning, 0 failed, 0 crashed\n"),
        "{checked}"
    );
    let without = folder.host("check libcapo_rewards.so --only creation");
    assert_eq!(without.code, Some(1));
    assert_snapshot!(without.stdout.lines().last().unwrap(), @"checks: 5 success, 3 skipped, 0 warning, 0 failed, 0 crashed (exit code 1: components are not checked)");
    assert_snapshot!(folder.refused("train --plugin libcapo_rewards.so"), @"component `command` is offered twice: built in and `BUILD/libcapo_rewards.so` (leave this plugin out)");
}

#[test]
fn checkpoints_hold_states_of_rewards() {
    let folder = folder(
        "[[reward]]\nuse = \"exact_match\"\n[[reward]]\nuse = \"rewarding.levelled\"\nlevel = \"easy\"\ntired = 3\n",
    );
    let args = format!("--config run.toml {PLUGIN} --set train.max_steps=5");
    let whole = folder.assert_resumes(&args, [2]);
    assert_eq!(
        folder.bytes("stopped-2/checkpoints/step-000002/reward-1.bin"),
        2_u64.to_le_bytes()
    );
    let resumed = folder.run_dir("stopped-2");
    assert_eq!(
        resumed.metric("rewards/rewarding.levelled/rollouts"),
        [1.0, 2.0, 3.0, 4.0, 5.0]
    );
    let best = whole.metric("rewards/rewarding.levelled/mean");
    assert!(
        best[3] <= 0.5 && best[4] <= 0.5,
        "the state has an effect: {best:?}"
    );
    // In another order, the states do not fit.
    let config = whole.path().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let (head, tables) = text.split_once("[[reward]]").unwrap();
    let (first, second) = tables.split_once("[[reward]]").unwrap();
    std::fs::write(
        &config,
        format!("{head}[[reward]]{second}\n[[reward]]{first}"),
    )
    .unwrap();
    assert_snapshot!(folder.refused("train --resume whole --allow-changed-config"), @"checkpoint `whole/checkpoints/step-000005` cannot be used: it holds the state of `exact_match`, `rewarding.levelled`, the run has `rewarding.levelled`, `exact_match` (resume with the plugins and the `config.toml` that the run began with)");
}

#[test]
fn errors_of_rewards_stop_the_run() {
    let column = folder(&LEVELLED.replace("easy", "hard"));
    let rows = column.text("train.jsonl");
    column.write("train.jsonl", rows.replace("\"level\"", "\"grade\""));
    let args = format!("train --output-dir run --config run.toml {PLUGIN} {ONE_STEP}");
    assert_snapshot!(column.host(&args).failed(), @"the run stopped after step 0 (go on with `host train --resume run`): component `rewarding.levelled`: a prompt's row has no column `level` (the row has `answer`, `grade`)");
}
