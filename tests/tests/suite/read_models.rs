//! Models that are read but not trained: reward models and reference models.

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::json;
use tests::{Folder, to_json_lines};

use crate::ONE_STEP;
use crate::refused::assert_refused;

pub const SCORED: &str = "--set reward=[{use=\"reward_model\",model_name_or_path=\"llama-score\"}]";
const COMPARED: &str = "--set model.ref_model_name_or_path=llama2 --set objective.beta=0.1";

fn folder(models: &[&str]) -> Folder {
    let folder = Folder::new();
    write_models(&folder, models);
    folder
}

/// Writes models of the trainer's golden data, each with the embedded tokenizer.
pub fn write_models(folder: &Folder, models: &[&str]) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/model/tests/data");
    for model in models {
        let golden = if model.ends_with("-score") {
            "frozen-golden"
        } else {
            "families-golden"
        };
        for file in ["config.json", "model.safetensors"] {
            let bytes = fs::read(data.join(golden).join(model).join(file)).unwrap();
            folder.write(&format!("{model}/{file}"), bytes);
        }
        folder.write_tokenizer(model);
    }
}

#[test]
fn resumes_bit_for_bit_with_a_reference_and_a_reward_model() {
    let folder = folder(&["llama-score", "llama2", "mistral"]);
    let args = format!(
        "{SCORED} {COMPARED} --set train.max_steps=4 --set eval.num_prompts=8 --set train.save_steps=2"
    );
    let whole = folder.assert_resumes(&args, [2]);
    assert!(
        !folder
            .bytes("stopped-2/checkpoints/step-000002/reward-0.bin")
            .is_empty(),
        "the scores so far are kept"
    );
    assert_eq!(
        whole.metric("rewards/reward_model/mean"),
        whole.metric("reward")
    );
    let new = whole.metric("rewards/reward_model/new_texts");
    assert!(
        new.iter().all(|share| *share > 0.0 && *share < 1.0),
        "a text is scored once: {new:?}"
    );
    assert_eq!(whole.metric("rewards/reward_model/cut_texts"), [0.0; 4]);
    // The policy is far from a reference with random weights, and at distance 0 from itself.
    let own = folder.train(
        "own",
        &args.replace("--set model.ref_model_name_or_path=llama2 ", ""),
    );
    assert!(whole.metric("kl")[0] > 0.1, "{:?}", whole.metric("kl"));
    assert!(own.metric("kl")[0].abs() < 1e-4, "{:?}", own.metric("kl"));
    // A run with another reference has other weights.
    folder.replace("stopped-2/config.toml", "/llama2\"", "/mistral\"");
    let refused = folder.refused("train --resume stopped-2");
    assert!(
        refused.contains("`model.ref_model_name_or_path`: "),
        "{refused}"
    );
}

#[test]
fn a_batch_of_one_text_scores_the_same() {
    let folder = folder(&["llama-score"]);
    let mean = |run: &str, more: &str| {
        let table = SCORED.replace("\"}", &format!("\"{more}}}"));
        folder
            .train(run, &format!("{table} {ONE_STEP}"))
            .metric("reward")[0]
    };
    let together = mean("together", "");
    assert!((together - mean("alone", ",batch_size=1")).abs() < 1e-5);
    assert!((together - mean("cut", ",max_length=3")).abs() > 1e-3);
}

#[test]
fn a_model_scores_the_whole_episode() {
    let folder = folder(&["llama-score"]);
    folder.write("game", include_str!("../../data/environments/game.sh"));
    let graded = |prompt: &str, longest: usize, more: &str| {
        folder.write(
            "rows.jsonl",
            to_json_lines([json!({"prompt": prompt, "answer": "1"})]),
        );
        let data = format!(
            "--set data={{dataset_name=\"rows.jsonl\",eval_dataset_name=\"rows.jsonl\",max_prompt_length={longest}}} --set eval.num_prompts=1"
        );
        folder.said(&format!(
            "eval {SCORED} {data} {more} --output graded.jsonl"
        ));
        folder.json_lines("graded.jsonl").remove(0)
    };
    let game =
        "--set environment={use=\"command\",command=[\"sh\",\"game\",\"0\"],max_turn_length=2}";
    let episode = graded(
        "12+",
        20,
        &format!("{game} --set rollout.max_completion_length=44"),
    );
    // The same text, of which all but the last turn is the prompt. Turns are too short for an end
    // token.
    let said = episode["completion"].as_str().unwrap();
    let last = said.rfind("+1 2=").unwrap() + "+1 2=".len();
    let whole = graded(
        &format!("12+1={}", &said[..last]),
        50,
        "--set rollout.max_completion_length=2",
    );
    assert_eq!(whole["completion"], said[last..]);
    assert!(
        (whole["reward"].as_f64().unwrap() - episode["reward"].as_f64().unwrap()).abs() < 1e-5,
        "{whole} {episode}"
    );
}

#[test]
fn refuses_a_reward_model_with_weights_that_are_not_finite() {
    let folder = folder(&["llama-score"]);
    let path = folder.path().join("llama-score/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    bytes[header..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let outcome = folder.attempt("run", &format!("{SCORED} {ONE_STEP}"));
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("NaN"), "{}", outcome.stderr);
}

#[test]
fn trains_with_a_named_reference_model() {
    let folder = folder(&["llama2"]);
    let run = |name: &str, reference: &str| {
        let two = "--set train.max_steps=2 --set eval.num_prompts=0 --set objective.beta=0.1";
        folder.train(name, &format!("{two} {reference}"))
    };
    let itself = run(
        "itself",
        "--set model.ref_model_name_or_path=embedded:tiny-arithmetic",
    );
    assert_eq!(
        itself.weights(),
        run("unnamed", "").weights(),
        "named or not, it is the same reference"
    );
    // Its vocabulary is padded to 24.
    let other = run("other", "--set model.ref_model_name_or_path=llama2");
    assert!(
        other.metric("kl")[0] > 0.1 && other.weights() != itself.weights(),
        "{:?}",
        other.metric("kl")
    );
}

#[test]
fn refuses_models_that_cannot_be_read() {
    let folder = folder(&["llama2", "qwen3-score", "bert-score"]);
    folder.write("gemma/config.json", "{\"model_type\": \"gemma\"}");
    assert_refused("read_models", &folder);
    folder.replace("llama2/tokenizer.json", "\"+\": 12", "\"-\": 12");
    assert_snapshot!(folder.refused(&format!("train {COMPARED}")), @"`FOLDER/llama2/tokenizer.json` has other tokens than `tokenizer.json` of the built-in model: 12 is `-` there and `+` here (use a reference with the policy's tokenizer)");
}
