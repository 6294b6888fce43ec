//! Episodes of several turns: what reaches the model, the loss and the log, the same bits under any timing, and what is refused.

use std::time::Duration;

use insta::assert_snapshot;
use tests::{Folder, RunDir};

use crate::interruption::{kill, start, wait_for};

/// A game of three turns. A turn earns by its length; `$1` is the time that an answer takes, seconds.
const GAME: &str = r#"#!/bin/sh
while read -r l; do
  e=${l#*episode\":}; e=${e%%[,\}]*}; n=${l#*turn\":}; n=${n%%[,\}]*}; t=${l#*text\":\"}; t=${t%%\"*}
  case $l in
    *ask\":\"tools*) echo '{"tools": []}';;
    *ask\":\"begin*) echo "{\"episode\": $e, \"message\": \"1=\"}";;
    *turn\":2*) sleep $1; echo "{\"episode\": $e, \"ended\": true, \"reward\": ${#t}, \"metrics\": {\"long\": ${#t}}}";;
    *) sleep $1; echo "{\"episode\": $e, \"messages\": [{\"content\": \"+$n 2=\"}], \"reward\": 0.25}";;
  esac
done
"#;

const STEPS: &str = "--set train.max_steps=4 --set train.save_steps=1 --set train.per_device_train_batch_size=16 --set eval.num_prompts=8 \
    --set eval.eval_steps=2 --set rollout.max_completion_length=44 --set reward=[{use=\"environment\"}] --set logging.log_completions=true \
    --set logging.log_tokens=true";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("game", GAME);
    folder
}

fn with(keys: &str, delay: &str) -> String {
    format!(
        "{STEPS} --set environment={{use=\"command\",command=[\"sh\",\"game\",\"{delay}\"],max_turn_length=9,deterministic=true{keys}}}"
    )
}

#[test]
fn the_models_tokens_alone_count_and_no_timing_changes_a_bit() {
    let folder = folder();
    let whole = folder.train("whole", &with("", "0"));
    let line = &whole.metrics()[0];
    assert_eq!((line["environment/turns"].as_f64(), line["environment/ended"].as_f64()), (Some(3.0), Some(1.0)));
    assert_eq!(line["rewards/environment/mean"], line["reward"]);
    assert_eq!(line["environment/command/long"].as_f64().map(|long| long + 0.5), line["reward"].as_f64());
    let mut drawn = Vec::new();
    for row in tests::json_lines(&whole.text("completions.jsonl")).iter().filter(|row| row["step"] == 1) {
        assert!(row["prompt"].as_str().unwrap().ends_with("=1="), "{row}");
        let messages: serde_json::Value = serde_json::from_str(row["messages"].as_str().unwrap()).unwrap();
        let roles: Vec<&str> =
            messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["assistant", "user", "assistant", "user", "assistant"]);
        let list = |name: &str| row[&format!("tokens/{name}")].as_array().unwrap().clone();
        let observed = list("observed");
        let of = |values: Vec<serde_json::Value>, which: u64| -> Vec<serde_json::Value> {
            let chosen = values.into_iter().zip(&observed).filter(|(_, one)| one.as_u64() == Some(which));
            chosen.map(|(value, _)| value).collect()
        };
        let said: String = of(list("text"), 1).iter().filter_map(|text| text.as_str()).collect();
        assert_eq!(said, "+0 2=+1 2=");
        assert!(of(list("keep"), 1).iter().all(|keep| keep == 0), "{row}");
        assert!(of(list("keep"), 0).iter().all(|keep| keep == 1), "{row}");
        drawn.push(of(list("keep"), 0).len() as f64);
    }
    let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
    assert_eq!(line["completions/mean_length"].as_f64(), Some(mean), "lengths are those of what the model drew");
    for (name, keys, delay) in [("workers", ",workers=3", "0"), ("slow", ",workers=2", "0.003")] {
        assert_eq!(folder.train(name, &with(keys, delay)).weights(), whole.weights(), "{name}");
    }
    let few = folder.train("few", &format!("{} --set rollout.max_num_seqs=5", with("", "0")));
    assert_eq!(few.weights(), whole.weights());
    let bf16 = |name: &str, delay: &str| folder.train(name, &format!("{} --set train.dtype=bf16", with("", delay)));
    assert_eq!(bf16("bf16", "0").weights(), bf16("bf16-slow", "0.003").weights());
}

#[test]
fn a_run_killed_inside_an_episode_resumes_to_the_same_bits() {
    let folder = folder();
    let args = with("", "0.002");
    let whole = folder.train("whole", &args);
    let killed: RunDir = folder.run_dir("killed");
    for (command, steps) in [(format!("train --output-dir killed {args}"), 1), ("train --resume killed".to_owned(), 2)]
    {
        let mut child = start(&folder, &command);
        wait_for(&mut child, &killed, steps);
        std::thread::sleep(Duration::from_millis(15));
        kill(child);
    }
    folder.resume("killed").assert_same_files(&whole);
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = folder();
    let refused = |args: &str| folder.refused(&format!("train {args} --output-dir run"));
    assert_snapshot!(refused("--set reward=[{use=\"environment\"}]"));
    assert_snapshot!(refused("--set environment={use=\"calculater\"}"));
    assert_snapshot!(refused("--set environment={use=\"calculator\",max_turns=0}"));
    assert_snapshot!(refused("--set environment={use=\"calculator\",max_turn_length=100}"));
    assert_snapshot!(refused("--set environment={use=\"calculator\",max_turn=2}"));
    assert_snapshot!(refused("--set environment={use=\"command\",command=[\"cat\"]}"));
    let tools = |schemas: &str| {
        folder.write("tools", format!("read -r l; echo '{{\"tools\": [{schemas}]}}'; cat"));
        refused("--set environment={use=\"command\",command=[\"sh\",\"tools\"]}")
    };
    assert_snapshot!(tools(r#"{"name": "f"}, {"name": "f"}"#));
    assert_snapshot!(tools(r#"{"name": "f", "parameters": 3}"#));
}

#[test]
fn what_goes_wrong_in_an_episode_ends_the_run_with_a_sentence() {
    let folder = folder();
    let failed = |name: &str, script: &str| {
        folder.write(name, GAME.replace("sleep $1;", script));
        let command = format!("environment={{use=\"command\",command=[\"sh\",\"{name}\"],timeout=0.5}}");
        folder.attempt(&format!("run-{name}"), &format!("{STEPS} --set {command} --set eval.num_prompts=0")).failed()
    };
    for (name, script, expected) in [
        (
            "letters",
            r#"echo "{\"episode\": $e, \"messages\": [{\"content\": \"abc\"}]}"; continue;"#,
            "component `command`: the model cannot read an observation: cannot encode `abc`: the tokenizer has no id for `a`",
        ),
        (
            "forged",
            r#"echo "{\"episode\": $e, \"messages\": [{\"role\": \"assistant\", \"content\": \"1\"}]}"; continue;"#,
            " has the role `assistant` (the model reads those of `user` and `tool`)",
        ),
        ("silent", "exec sleep 1000;", " answers in 0.5 seconds, `timeout`: signal: 9 (SIGKILL) (only a program with"),
    ] {
        let said = failed(name, script);
        assert!(said.contains(expected), "{said}");
    }
}
