//! `host runs`.

use insta::assert_snapshot;
use serde_json::Value;
use tests::{Folder, RunDir};

use crate::interruption::{kill, start, wait_for};

#[test]
fn lists_runs_with_their_state_and_progress() {
    let folder = Folder::new();
    let progress =
        |run: &RunDir| tests::json(&run.last_checkpoint().join("progress.json"))["progress"].take();
    let steps = "--set train.max_steps=3 --set eval.num_prompts=8";
    folder.train("runs/b", &format!("{steps} --set train.seed=7"));
    folder.train(
        "runs/a",
        &format!("{steps} --plugin libcapo.so --stop-after 1"),
    );
    let rejecting = folder.train("runs/d", &format!("{steps} --plugin libcapo.so"));
    folder.write("runs/c/config.toml", "damaged");
    folder.write("runs/notes.txt", "no run");
    let outcome = folder.host("runs").succeeded();
    let lines: Vec<Vec<&str>> = outcome
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0][..6],
        ["run", "status", "steps", "recipe", "seed", "rate"]
    );
    assert_eq!(lines[1][..6], ["a", "stopped", "1/3", "capo", "42", "1e-4"]);
    assert_eq!(lines[2][..6], ["b", "finished", "3/3", "grpo", "7", "1e-4"]);
    assert_eq!(lines[3][..4], ["c", "stopped", "0/?", "-"]);
    assert_snapshot!(outcome.stderr, @"
    warning: `c`: `config.toml` cannot be used: settings are not TOML: TOML parse error at line 1, column 8
    warning: `c`: cannot read `runs/c/metrics.jsonl`: No such file or directory (os error 2)
    ");
    let runs: Value = serde_json::from_str(&folder.said("runs runs/b --json")).unwrap();
    assert_eq!(
        runs[0]["accuracy"],
        progress(&folder.run_dir("runs/b"))["accuracy"]
    );
    assert_eq!(runs[0]["components"], serde_json::json!([]));
    // `runs/*` also matches models of `host sft`.
    folder.write("runs/base/config.json", "{}");
    let runs: Value = serde_json::from_str(&folder.said("runs runs/b runs/base --json")).unwrap();
    assert_eq!(runs.as_array().unwrap().len(), 1);
    assert!(
        folder
            .refused("runs runs/base")
            .contains("`runs/base` is no run and holds none")
    );
    // The rejected share covers all tokens of the run, as in its final summary.
    let runs: Value = serde_json::from_str(&folder.said("runs runs/d --json")).unwrap();
    let progress = progress(&rejecting);
    let [rejected, tokens] =
        ["rejected_tokens", "completion_tokens"].map(|name| progress[name].as_f64().unwrap());
    assert!(rejected > 0.0);
    assert_eq!(runs[0]["rejected"].as_f64().unwrap(), rejected / tokens);
    // The run's settings name its recipe: its evaluation needs no plugin.
    folder.said("eval --model runs/d --num-prompts 2");
}

#[test]
fn listing_does_not_disturb_a_running_run() {
    let folder = Folder::new();
    let long = "--set train.max_steps=100000 --set eval.num_prompts=0";
    let mut child = start(&folder, &format!("train --output-dir runs/long {long}"));
    wait_for(&mut child, &folder.run_dir("runs/long"), 0);
    let status = || {
        let runs: Value = serde_json::from_str(&folder.said("runs --json")).unwrap();
        runs[0]["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(status(), "running");
    kill(child);
    assert_eq!(status(), "stopped");
}
