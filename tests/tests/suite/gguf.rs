//! GGUF files as models of every command.

use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tests::artifacts::workspace;
use tests::{Folder, json_lines, to_json_lines};

use crate::ONE_STEP;

fn folder() -> PathBuf {
    workspace().join("host/model/tests/data/gguf-golden")
}

/// The path of a file, and the scores that transformers computes with it.
fn golden(name: &str) -> (String, Value) {
    let rows: Value = tests::json(&folder().join("golden.json"));
    let row = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == name)
        .unwrap();
    (
        folder().join(format!("{name}.gguf")).display().to_string(),
        row.clone(),
    )
}

/// Rows of a dataset, and a run over them.
fn rows(folder: &Folder) -> String {
    let row = |i: u32| json!({"prompt": format!("{i} + 1 ="), "answer": "2"});
    folder.write("rows.jsonl", to_json_lines((0..8).map(row)));
    let data = "--set data.dataset_name=rows.jsonl --set data.eval_dataset_name=rows.jsonl";
    format!("{ONE_STEP} {data} --set rollout.max_completion_length=8")
}

#[test]
fn a_file_trains_and_its_checkpoint_is_a_directory() {
    let (folder, (model, _)) = (Folder::new(), golden("llama-pieces"));
    let settings = rows(&folder);
    let run = folder.train(
        "run",
        &format!("--set model.model_name_or_path={model} {settings}"),
    );
    let checkpoint = run.last_checkpoint();
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        assert!(checkpoint.join(file).is_file(), "{file}");
    }
    // A run resumes from the checkpoint. Another run uses the file as reference model and as the
    // base of an adapter.
    folder.train(
        "next",
        &format!(
            "--set model.model_name_or_path={} {settings}",
            checkpoint.display()
        ),
    );
    let beta = format!("--set model.ref_model_name_or_path={model} --set objective.beta=0.1");
    let adapter = format!(
        "--set model.model_name_or_path={model} --set model.use_peft=true --set train.dtype=bf16"
    );
    let run = folder.train("adapter", &format!("{adapter} {beta} {settings}"));
    let scored = format!(
        "generate --model {} --max-completion-length 2 1",
        run.last_checkpoint().display()
    );
    folder.said(&scored);
    folder.said(&format!(
        "train --dry-run --set model.model_name_or_path={model} {settings}"
    ));
}

#[test]
fn an_exported_model_scores_the_same() {
    for name in ["llama-f16", "llama-k", "qwen2-q4_0", "qwen3-q4_1"] {
        let (folder, (model, golden)) = (Folder::new(), golden(name));
        folder.write(
            "rows.jsonl",
            to_json_lines(golden["rows"].as_array().unwrap().clone()),
        );
        folder.said(&format!("export --model {model} --out directory"));
        let scores =
            |model: &str| folder.said(&format!("score --model {model} --input rows.jsonl --out -"));
        let of_file = scores(&model);
        assert_eq!(of_file, scores("directory"));
        assert_eq!(
            json_lines(&of_file).len(),
            golden["rows"].as_array().unwrap().len()
        );
    }
}

#[test]
fn conversations_go_through_the_template() {
    for name in ["llama-pieces", "llama-q8_0"] {
        let (folder, (model, golden)) = (Folder::new(), golden(name));
        let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]);
        folder.write(
            "prompts.jsonl",
            json!({"prompt": messages}).to_string() + "\n",
        );
        let chat = "--chat --input prompts.jsonl --max-completion-length 1 --out answers.jsonl";
        folder.said(&format!("generate --model {model} {chat}"));
        let rows = folder.json_lines("answers.jsonl");
        assert_eq!(rows[0]["prompt_ids"], golden["chat"]["ids"], "{name}");
    }
}

#[test]
fn refuses_files_of_other_formats() {
    let folder = Folder::new();
    folder.write("some/model.Q4_K_M.gguf", "GGUF");
    let refused = |model: &str| folder.refused(&format!("generate --model {model} 1+1="));
    assert_snapshot!(refused("some"), @"no model `some`: it has GGUF files alone (name one of them, as in `some/model.Q4_K_M.gguf`)");
    assert_snapshot!(refused("some/model.Q4_K_M.gguf"), @"cannot use `some/model.Q4_K_M.gguf`: not a whole GGUF file, with a header of 16 MiB at most: failed to fill whole buffer (fetch the file again)");
    assert_snapshot!(refused("absent.gguf"), @"cannot read `absent.gguf`: No such file or directory (os error 2)");
}
