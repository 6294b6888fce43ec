//! Models that are only read: rewards of a model that scores texts, and references.

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use tests::Folder;

use crate::ONE_STEP;

const SCORED: &str = "--set reward=[{use=\"reward_model\",model_name_or_path=\"llama-score\"}]";
const COMPARED: &str = "--set model.ref_model_name_or_path=llama2 --set objective.beta=0.1";

/// A folder with models of the trainer's golden data, each with the embedded tokenizer.
fn folder(models: &[&str]) -> Folder {
    let folder = Folder::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/model/tests/data");
    for model in models {
        let golden = if model.ends_with("-score") { "frozen-golden" } else { "families-golden" };
        for file in ["config.json", "model.safetensors"] {
            let bytes = fs::read(data.join(golden).join(model).join(file)).unwrap();
            folder.write(&format!("{model}/{file}"), bytes);
        }
        folder.write_tokenizer(model);
    }
    folder
}

#[test]
fn a_run_with_both_goes_on_bit_for_bit() {
    let folder = folder(&["llama-score", "llama2", "mistral"]);
    let args = format!("{SCORED} {COMPARED} --set train.max_steps=4 --set eval.num_prompts=8 --set train.save_steps=2");
    let whole = folder.assert_resumes(&args, [2]);
    assert!(!folder.bytes("stopped-2/checkpoints/step-000002/reward-0.bin").is_empty(), "the scores so far are kept");
    assert_eq!(whole.metric("rewards/reward_model/mean"), whole.metric("reward"));
    let new = whole.metric("rewards/reward_model/new_texts");
    assert!(new.iter().all(|share| *share > 0.0 && *share < 1.0), "a text is scored once: {new:?}");
    assert_eq!(whole.metric("rewards/reward_model/cut_texts"), [0.0; 4]);
    // The policy is far from a reference of random weights, and not from itself.
    let own = folder.train("own", &args.replace("--set model.ref_model_name_or_path=llama2 ", ""));
    assert!(whole.metric("kl")[0] > 0.1, "{:?}", whole.metric("kl"));
    assert!(own.metric("kl")[0].abs() < 1e-4, "{:?}", own.metric("kl"));
    // Another reference is another run.
    folder.replace("stopped-2/config.toml", "/llama2\"", "/mistral\"");
    let refused = folder.refused("train --resume stopped-2");
    assert!(refused.contains("`model.ref_model_name_or_path`: "), "{refused}");
}

#[test]
fn a_batch_of_one_text_scores_the_same() {
    let folder = folder(&["llama-score"]);
    let mean = |run: &str, more: &str| {
        let table = SCORED.replace("\"}", &format!("\"{more}}}"));
        folder.train(run, &format!("{table} {ONE_STEP}")).metric("reward")[0]
    };
    let together = mean("together", "");
    assert!((together - mean("alone", ",batch_size=1")).abs() < 1e-5);
    assert!((together - mean("cut", ",max_length=3")).abs() > 1e-3);
}

#[test]
fn a_score_that_is_no_number_ends_the_run() {
    let folder = folder(&["llama-score"]);
    let path = folder.path().join("llama-score/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    bytes[header..].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let outcome = folder.attempt("run", &format!("{SCORED} {ONE_STEP}"));
    assert_eq!(outcome.code, Some(1));
    let sentence = "component `reward_model`: the reward is NaN at completion 0 (it must be finite)";
    assert!(outcome.stderr.contains(sentence), "{}", outcome.stderr);
}

#[test]
fn references_that_are_named() {
    let folder = folder(&["llama2"]);
    let run = |name: &str, reference: &str| {
        let two = "--set train.max_steps=2 --set eval.num_prompts=0 --set objective.beta=0.1";
        folder.train(name, &format!("{two} {reference}"))
    };
    let itself = run("itself", "--set model.ref_model_name_or_path=embedded:tiny-arithmetic");
    assert_eq!(itself.weights(), run("unnamed", "").weights(), "named or not, it is the same reference");
    // Its vocabulary is padded to 24.
    let other = run("other", "--set model.ref_model_name_or_path=llama2");
    assert!(other.metric("kl")[0] > 0.1 && other.weights() != itself.weights(), "{:?}", other.metric("kl"));
}

#[test]
fn references_that_cannot_be() {
    let refused = |folder: &Folder, args: &str| folder.refused(&format!("train --output-dir run {args}"));
    let models = folder(&["llama2", "bert-score"]);
    assert_snapshot!(refused(&models, "--set model.ref_model_name_or_path=llama2"), @"`model.ref_model_name_or_path` is `FOLDER/llama2`, but no component of this run compares with a reference (set the objective's `beta` above 0, or remove it)");
    assert_snapshot!(refused(&models, &format!("{COMPARED} --set rollout.max_completion_length=60")), @"`data.max_prompt_length` 16 and `rollout.max_completion_length` 60 make 76 tokens, the model has 64 positions (lower one of them)");
    assert_snapshot!(refused(&models, &COMPARED.replace("llama2", "bert-score")), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/bert-score/config.json`: `model_type` is `bert`, supported are `llama`, `mistral`, `qwen2` and `qwen3` (use a checkpoint of one of these families)");
    assert_snapshot!(refused(&models, &COMPARED.replace("llama2", "nowhere")), @"no model `nowhere`: neither an embedded one nor a directory (embedded: `embedded:tiny-arithmetic`; a directory holds `config.json`, `model.safetensors` and `tokenizer.json`)");
    models.replace("llama2/tokenizer.json", "\"+\": 12", "\"-\": 12");
    assert_snapshot!(refused(&models, COMPARED), @"`FOLDER/llama2/tokenizer.json` has other tokens than `tokenizer.json` of the built-in model: 12 is `-` there and `+` here (use a reference with the policy's tokenizer)");
}

#[test]
fn reward_models_that_cannot_be() {
    let models = folder(&["qwen3-score", "bert-score"]);
    models.write("gemma/config.json", "{\"model_type\": \"gemma\"}");
    let refused = |table: &str| {
        let args = format!("train --output-dir run --set reward=[{{use=\"reward_model\"{table}}}]");
        models.refused(&args)
    };
    assert_snapshot!(refused(""), @r#"`[[reward]]` with `use = "reward_model"`: missing field `model_name_or_path`"#);
    assert_snapshot!(refused(",model_name_or_path=\"nowhere\""), @r#"`[[reward]]` with `use = "reward_model"`: no model `nowhere`: neither an embedded one nor a directory (embedded: `embedded:tiny-arithmetic`; a directory holds `config.json`, `model.safetensors` and `tokenizer.json`)"#);
    assert_snapshot!(refused(",model_name_or_path=\"gemma\""), @r#"`[[reward]]` with `use = "reward_model"`: cannot use `FOLDER/gemma/config.json`: `model_type` is `gemma`, supported are `llama`, `mistral`, `qwen2` and `qwen3`, and `bert`, `deberta-v2`, `modernbert`, `xlm-roberta` (use a checkpoint of one of these families; docs/models.md says why)"#);
    assert_snapshot!(refused(",model_name_or_path=\"qwen3-score\""), @r#"`[[reward]]` with `use = "reward_model"`: the model has 3 outputs, `bad`, `fair`, `good` (choose one with `label`)"#);
    assert_snapshot!(refused(",model_name_or_path=\"qwen3-score\",label=\"best\""), @r#"`[[reward]]` with `use = "reward_model"`: `label` is `best`, but the model's outputs are `bad`, `fair`, `good` (choose one of them)"#);
    assert_snapshot!(refused(",model_name_or_path=\"bert-score\",max_length=65"), @r#"`[[reward]]` with `use = "reward_model"`: `max_length` is 65 (it must be at least 1 and at most the model's 64 positions)"#);
    assert_snapshot!(refused(",model_name_or_path=\"bert-score\",batch_size=0"), @r#"`[[reward]]` with `use = "reward_model"`: `batch_size` is 0 (it must be at least 1)"#);
    assert_snapshot!(refused(",model_name_or_path=\"bert-score\",device=\"gpu\""), @r#"`[[reward]]` with `use = "reward_model"`: there is no device `gpu` (use `cpu`, or `cuda:0` for the first CUDA device)"#);
}
