//! `host score` and `host generate`: scores of given completions, and completions of prompts.

use std::io::Write;
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tests::artifacts::workspace;
use tests::{Folder, json_lines, names, to_json_lines};

use crate::interruption::terminate;
use crate::refused::assert_refused;

/// The rows for one model of `make.py`, with the scores by transformers.
fn golden(model: &str) -> Vec<Value> {
    let path = workspace().join("host/model/tests/data/families-golden/scores.json");
    let rows: Vec<Value> = serde_json::from_value(tests::json(&path)).unwrap();
    rows.into_iter()
        .filter(|row| row["model"] == model)
        .collect()
}

fn logps(row: &Value) -> Vec<f64> {
    row["logps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|logp| logp.as_f64().unwrap())
        .collect()
}

#[test]
fn scores_agree_with_transformers() {
    for model in ["llama3", "qwen3"] {
        let (folder, rows) = (Folder::new(), golden(model));
        folder.write("rows.jsonl", to_json_lines(rows.clone()));
        let directory = workspace()
            .join("host/model/tests/data/families-golden")
            .join(model);
        let score = format!("score --model {} --input rows.jsonl", directory.display());
        let outcome = folder
            .host(&format!("{score} --out scores.jsonl"))
            .succeeded();
        assert_eq!(outcome.stdout, "7 completions, 22 tokens: `scores.jsonl`\n");
        let scores = folder.json_lines("scores.jsonl");
        assert_eq!(scores.len(), rows.len());
        for (ours, theirs) in scores.iter().map(logps).zip(rows.iter().map(logps)) {
            assert_eq!(ours.len(), theirs.len());
            assert!(
                ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-5),
                "{ours:?} {theirs:?}"
            );
        }
        // The size of batches does not change a digit: one row each, and a few, printed to the
        // terminal.
        for tokens in [1, 20] {
            let apart = folder.said(&format!("{score} --batch-tokens {tokens} --out -"));
            assert_eq!(json_lines(&apart), scores, "{tokens}");
        }
    }
}

const SCORE: &str = "score --model embedded:tiny-arithmetic --input rows.jsonl --out scores.jsonl";

#[test]
fn scores_text_like_its_ids() {
    let folder = Folder::new();
    folder.write("rows.jsonl", "\u{feff}{\"prompt\": \"12+34=\", \"completion\": \"46\"}\n{\"prompt_ids\": [3, 4, 12, 5, 6, 13], \"completion_ids\": [6, 8]}\n");
    folder.said(SCORE);
    let scores = folder.json_lines("scores.jsonl");
    assert_eq!((logps(&scores[0]).len(), &scores[0]), (2, &scores[1]));
}

#[test]
fn bad_rows_leave_no_file() {
    let folder = Folder::new();
    folder.write(
        "rows.jsonl",
        "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n\n{\"prompt\": \"1+1=\", \"completion\": \"x\"}\n",
    );
    folder.write("folder/file", "");
    assert_refused("score", &folder);
}

#[test]
fn an_interrupted_score_leaves_no_file() {
    let folder = Folder::new();
    let mut command =
        folder.command("score --model embedded:tiny-arithmetic --input - --out scores.jsonl");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // The input is larger than a pipe holds. Once it is written, rows are being read.
    let mut input = child.stdin.take().unwrap();
    input.write_all(&[b'\n'; 1 << 20]).unwrap();
    assert_eq!(
        names(folder.path()).len(),
        1,
        "the answers are on their way"
    );
    terminate(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(folder.path()).len(), 0, "nothing is left of them");
}

#[test]
fn reports_weights_that_are_not_finite() {
    let folder = Folder::new();
    let run = folder.train("run", crate::ONE_STEP);
    let path = run.last_checkpoint();
    std::fs::remove_file(path.join(capo_system::manifest::FILE)).unwrap();
    let weights = path.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let mut fill = |number: f32| {
        let end = bytes.len();
        bytes[end - 65_536..]
            .chunks_exact_mut(4)
            .for_each(|value| value.copy_from_slice(&number.to_le_bytes()));
        std::fs::write(&weights, &bytes).unwrap();
    };
    folder.write(
        "rows.jsonl",
        "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n",
    );
    let score = "score --model run/checkpoints/step-000001 --input rows.jsonl --out scores.jsonl";
    fill(f32::NAN);
    assert_snapshot!(folder.refused(score), @"cannot use `run/checkpoints/step-000001/model.safetensors`: cannot read tensor `model.layers.1.mlp.up_proj.weight`: some of its numbers are infinite or NaN (use another checkpoint, or fetch the file again)");
    fill(f32::MAX);
    assert_snapshot!(folder.host(score).failed(), @"the model produced a log-probability that is not finite (are its weights?)");
    assert!(!folder.path().join("scores.jsonl").exists());
}

#[test]
fn scores_generated_completions() {
    let folder = Folder::new();
    let generate = "generate --model embedded:tiny-arithmetic --max-completion-length 24";
    let out = folder
        .command(&format!("{generate} --temperature 0"))
        .arg("123+456=")
        .output()
        .unwrap();
    let streamed = String::from_utf8(out.stdout).unwrap();
    folder.write(
        "prompts.jsonl",
        "\u{feff}{\"prompt\": \"123+456=\"}\n{\"prompt\": \"1+1=\"}\n",
    );
    let generate = format!("{generate} --temperature 0 --input prompts.jsonl --out");
    folder.said(&format!("{generate} rows.jsonl"));
    assert_eq!(
        folder.said(&format!("{generate} -")),
        folder.text("rows.jsonl")
    );
    let rows = folder.json_lines("rows.jsonl");
    assert_eq!(
        streamed,
        format!("123+456={}\n", rows[0]["completion"].as_str().unwrap())
    );
    assert_eq!(rows[1]["prompt_ids"], json!([3, 12, 3, 13]));
    folder.said(SCORE);
    for (row, scores) in rows.iter().zip(folder.json_lines("scores.jsonl")) {
        let sum: f64 = logps(&scores).iter().sum();
        assert_eq!(
            row["completion_ids"].as_array().unwrap().len(),
            logps(&scores).len()
        );
        assert!(
            sum < 0.0 && sum > -10.0,
            "the most likely tokens are likely: {sum}"
        );
    }
}

#[test]
fn generates_several_completions_of_several_prompts() {
    let folder = Folder::new();
    folder.write("prompts.txt", "\u{feff}1+1=\n\n2+2=\n");
    let generate = "generate --model embedded:tiny-arithmetic --max-completion-length 3 --input prompts.txt --num-generations 2";
    let first = folder.said(generate);
    let blocks: Vec<&str> = first.split("\n\n").collect();
    assert_eq!(
        blocks.iter().map(|block| &block[..4]).collect::<Vec<_>>(),
        ["1+1=", "1+1=", "2+2=", "2+2="]
    );
    assert_eq!(folder.said(generate), first, "the seed decides");
    assert_ne!(folder.said(&format!("{generate} --seed 7")), first);
    let rows = |size| {
        folder.said(&format!("{generate} --batch-size {size} --out rows.jsonl"));
        folder.json_lines("rows.jsonl")
    };
    assert_eq!(rows(1), rows(4));
}

#[test]
fn scores_the_best_or_newest_checkpoint_of_a_run() {
    let folder = Folder::new();
    let sets = "--set train.max_steps=3 --set eval.num_prompts=8 --set eval.eval_steps=1 --set train.save_steps=1";
    folder.train("newest", sets);
    let best = folder.train(
        "best",
        &format!("{sets} --set train.metric_for_best_model=eval_reward"),
    );
    let best =
        tests::json(&best.last_checkpoint().join("progress.json"))["progress"]["best"]["step"]
            .as_u64()
            .unwrap();
    folder.write(
        "rows.jsonl",
        "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n",
    );
    for (run, step) in [("newest", 3), ("best", best)] {
        let checkpoint = format!("{run}/checkpoints/step-{step:06}");
        for (command, rest) in [
            ("generate", "12+3="),
            ("score", "--input rows.jsonl --out -"),
        ] {
            let said = |model: &str| folder.said(&format!("{command} --model {model} {rest}"));
            assert_eq!(said(run), said(&checkpoint), "{command} on {run}");
        }
    }
}

#[test]
fn generation_refuses_bad_input() {
    let folder = Folder::new();
    // Without a length, completions may be as long as the model's positions allow.
    folder.said("generate --model embedded:tiny-arithmetic 1+1= 123+456=");
    folder.write("prompts.jsonl", "{\"prompt\": 1}\n");
    folder.write("prompts.NDJSON", "{\"prompt\": 1}\n");
    folder.write("prompts.txt", "\n");
    assert_refused("generate", &folder);
}

/// A checkpoint in the layout of the Hub's cache.
#[test]
fn finds_models_by_their_id() {
    let folder = Folder::new();
    let run = folder.train("run", crate::ONE_STEP);
    let snapshot = folder
        .path()
        .join("hub/models--org--model/snapshots/0123abc");
    std::fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    std::fs::rename(run.last_checkpoint(), &snapshot).unwrap();
    folder.write("hub/models--org--model/refs/main", "0123abc");
    let generation = r#"{"eos_token_id": 1, "temperature": 0.6, "top_p": 0.9}"#;
    std::fs::write(snapshot.join("generation_config.json"), generation).unwrap();
    std::fs::remove_file(snapshot.join(capo_system::manifest::FILE)).unwrap();
    let cache = folder.path().join("hub");
    let folder = folder.env("HF_HUB_CACHE", cache);
    let outcome = folder
        .host("generate --model org/model --temperature 0 --max-completion-length 8 1+1=")
        .succeeded();
    assert!(outcome.stdout.starts_with("1+1="), "{}", outcome.stdout);
    assert_snapshot!(outcome.stderr, @"note: `FOLDER/hub/models--org--model/snapshots/0123abc/generation_config.json` proposes `temperature` 0.6, `top_p` 0.9; only what is given here counts");
    folder.train(
        "next",
        &format!(
            "--set model.model_name_or_path=org/model {}",
            crate::ONE_STEP
        ),
    );
    let config = folder.text("next/config.toml");
    assert!(
        config.contains("hub/models--org--model/snapshots/0123abc\""),
        "a resume finds the same files: {config}"
    );
    assert_snapshot!(folder.refused("generate --model org/other 1+1="), @"no model `org/other`: neither a directory nor in the cache of the Hugging Face Hub, `FOLDER/hub` (fetch it with `host download org/other`)");
}
