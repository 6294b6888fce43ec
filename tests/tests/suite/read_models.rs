//! Models that are only read: rewards of a model that scores texts, and a reference of another family.

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use tests::Folder;

use crate::ONE_STEP;

const SCORED: &str = "--set reward=[{use=\"reward_model\",model_name_or_path=\"llama-score\"}]";
const COMPARED: &str = "--set model.ref_model_name_or_path=gemma --set objective.beta=0.1";

/// A folder with models of the trainer's golden data, each with the embedded tokenizer.
fn folder(models: &[&str]) -> Folder {
    let folder = Folder::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/model/tests/data/frozen-golden");
    for model in models {
        write_model(&folder, model, &data.join(model));
    }
    folder
}

/// Writes a model of the golden data into the folder, with the embedded tokenizer.
fn write_model(folder: &Folder, name: &str, source: &Path) {
    for file in ["config.json", "model.safetensors"] {
        folder.write(&format!("{name}/{file}"), fs::read(source.join(file)).unwrap());
    }
    folder.write_tokenizer(name);
}

#[test]
fn a_run_with_both_goes_on_bit_for_bit() {
    let folder = folder(&["llama-score", "gemma", "smollm3"]);
    let args = format!("{SCORED} {COMPARED} --set train.max_steps=4 --set eval.num_prompts=8 --set train.save_steps=2");
    let whole = folder.assert_resumes(&args, [2]);
    assert!(!folder.bytes("stopped-2/checkpoints/step-000002/reward-0.bin").is_empty(), "the scores so far are kept");
    assert_eq!(whole.metric("rewards/reward_model/mean"), whole.metric("reward"));
    let new = whole.metric("rewards/reward_model/new_texts");
    assert!(new.iter().all(|share| *share > 0.0 && *share < 1.0), "a text is scored once: {new:?}");
    assert_eq!(whole.metric("rewards/reward_model/cut_texts"), [0.0; 4]);
    // The policy is far from a reference of random weights, and not from itself.
    let own = folder.train("own", &args.replace("--set model.ref_model_name_or_path=gemma ", ""));
    assert!(whole.metric("kl")[0] > 0.1, "{:?}", whole.metric("kl"));
    assert!(own.metric("kl")[0].abs() < 1e-4, "{:?}", own.metric("kl"));
    // Another reference is another run.
    folder.replace("stopped-2/config.toml", "/gemma\"", "/smollm3\"");
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
fn references_of_families_that_are_trained_here() {
    let folder = folder(&[]);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/model/tests/data/families-golden/llama2");
    write_model(&folder, "llama", &data);
    let run = |name: &str, reference: &str| {
        let two = "--set train.max_steps=2 --set eval.num_prompts=0 --set objective.beta=0.1";
        folder.train(name, &format!("{two} {reference}"))
    };
    let itself = run("itself", "--set model.ref_model_name_or_path=embedded:tiny-arithmetic");
    assert_eq!(itself.weights(), run("unnamed", "").weights(), "named or not, it is the same reference");
    // Its vocabulary is padded to 24.
    let other = run("other", "--set model.ref_model_name_or_path=llama");
    assert!(other.metric("kl")[0] > 0.1 && other.weights() != itself.weights(), "{:?}", other.metric("kl"));
}

#[test]
fn references_that_cannot_be() {
    let refused = |folder: &Folder, args: &str| folder.refused(&format!("train --output-dir run {args}"));
    let models = folder(&["gemma", "bert-score"]);
    assert_snapshot!(refused(&models, "--set model.ref_model_name_or_path=gemma"), @"`model.ref_model_name_or_path` is `FOLDER/gemma`, but no component of this run compares with a reference (set the objective's `beta` above 0, or remove it)");
    assert_snapshot!(refused(&models, &format!("{COMPARED} --set rollout.max_completion_length=60")), @"`data.max_prompt_length` 16 and `rollout.max_completion_length` 60 make 76 tokens, the model has 64 positions (lower one of them)");
    assert_snapshot!(refused(&models, &COMPARED.replace("gemma", "bert-score")), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/bert-score/config.json`: `model_type` is `bert`, supported are `llama`, `mistral`, `qwen2` and `qwen3`, and `gemma`, `glm4`, `qwen3_moe`, `smollm3` (use a checkpoint of one of these families; docs/models.md says why)");
    assert_snapshot!(refused(&models, &COMPARED.replace("gemma", "nowhere")), @"no model `nowhere`: neither an embedded one nor a directory (embedded: `embedded:tiny-arithmetic`; a directory holds `config.json`, `model.safetensors` and `tokenizer.json`)");
    let change = |file: &str, from: &str, to: &str| {
        let models = folder(&["gemma"]);
        models.replace(&format!("gemma/{file}"), from, to);
        refused(&models, COMPARED)
    };
    assert_snapshot!(change("tokenizer.json", "\"+\": 12", "\"-\": 12"), @"`FOLDER/gemma/tokenizer.json` has other tokens than `tokenizer.json` of the built-in model: 12 is `-` there and `+` here (use a reference with the policy's tokenizer)");
    assert_snapshot!(change("config.json", "\"rms_norm_eps\"", "\"logit_cap\": 3, \"rms_norm_eps\""), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/gemma/config.json`: `logit_cap` is `3`, which is an unknown setting of a `gemma` model (remove it if it changes nothing of what the model computes)");
    assert_snapshot!(change("config.json", "\"rope_type\": \"default\"", "\"rope_type\": \"yarn\""), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/gemma/config.json`: `rope_type` of `rope_parameters` is `yarn`, only `default` is supported of a model that is not of a family that is trained here (use another checkpoint)");
    assert_snapshot!(change("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/gemma/model.safetensors`: tensor `model.layers.2.self_attn.q_proj.weight` is missing (the weights and `config.json` must be of one model)");
    assert_snapshot!(change("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/gemma/model.safetensors`: unexpected tensor `model.layers.1.input_layernorm.weight` (the weights and `config.json` must be of one model)");
    assert_snapshot!(change("config.json", "\"hidden_size\": 16", "\"hidden_size\": 18"), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/gemma/model.safetensors`: tensor `model.embed_tokens.weight` has shape [16, 16], expected [16, 18] (the weights and `config.json` must be of one model)");
    assert_snapshot!(change("config.json", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 0"), @"`model.ref_model_name_or_path` names a model that cannot be the reference: a model that is only read cannot be used: it is damaged, or of a kind that is not supported (attempt to divide by zero)");
    assert_snapshot!(change("config.json", "\"num_attention_heads\": 2", "\"num_attention_heads\": 1073741824"), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/gemma/model.safetensors`: tensor `model.layers.0.self_attn.q_proj.weight` has shape [16, 16], expected [8589934592, 16] (the weights and `config.json` must be of one model)");
    assert_snapshot!(change("config.json", "\"vocab_size\": 16", "\"vocab_size\": 4611686018427387904"), @"`model.ref_model_name_or_path` names a model that cannot be the reference: cannot use `FOLDER/gemma/config.json`: `vocab_size` is 4611686018427387904, expected at most 2147483647 (correct `config.json`)");
}

#[test]
fn reward_models_that_cannot_be() {
    let models = folder(&["qwen3-score", "gemma", "bert-score"]);
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
