//! Models that are only read, against Hugging Face transformers (numbers made by
//! `data/frozen-golden/make.py`).

use std::fs;
use std::path::Path;

use candle_core::{Device, Tensor};
use host_model::frozen::Classifier;
use host_model::{ModelFiles, embedded};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::shared::{self, changed_copy, data};

/// Id of padding.
const PAD: Option<u32> = Some(0);

#[derive(Deserialize)]
struct Row {
    ids: Vec<u32>,
    scores: Vec<f32>,
}

fn load(directory: &Path, label: Option<&str>) -> anyhow::Result<Classifier> {
    Classifier::load(
        &ModelFiles::Directory(directory.to_owned()),
        label,
        &Device::Cpu,
    )
}

/// Compares the output with the number `output` and the name `label`, for texts in one ragged batch
/// and one at a time.
fn compare(name: &str, label: Option<&str>, output: usize) {
    compare_with(&data("frozen-golden").join(name), name, label, output);
}

/// Compares the outputs of `directory`, a copy of `name`.
fn compare_with(directory: &Path, name: &str, label: Option<&str>, output: usize) {
    let model = load(directory, label).unwrap();
    let rows: Vec<Row> = shared::json(&data("frozen-golden").join(name).join("scores.json"));
    let ids: Vec<Vec<u32>> = rows.iter().map(|row| row.ids.clone()).collect();
    let together = model.score(&ids, PAD).unwrap();
    let alone = ids
        .iter()
        .map(|ids| model.score(std::slice::from_ref(ids), PAD).unwrap()[0]);
    for ((together, alone), row) in together.iter().zip(alone).zip(&rows) {
        let expected = row.scores[output];
        assert!(
            (together - expected).abs() < 1e-4,
            "{name}: {together} {expected}"
        );
        assert!(
            (alone - expected).abs() < 1e-4,
            "{name}: alone {alone} {expected}"
        );
    }
}

#[test]
fn decoders_score_as_transformers_does() {
    for name in ["llama-score", "mistral-score", "qwen2-score"] {
        compare(name, None, 0);
    }
    for (output, label) in ["bad", "fair", "good"].into_iter().enumerate() {
        compare("qwen3-score", Some(label), output);
    }
}

#[test]
fn encoders_score_as_transformers_does() {
    for name in [
        "bert-score",
        "deberta-v2-score",
        "modernbert-score",
        "xlm-roberta-score",
    ] {
        compare(name, None, 0);
    }
}

/// A copy of the model `name` with one more weight.
fn copy_with(name: &str, changes: &Value, weight: &str, value: Tensor) -> tempfile::TempDir {
    let copy = changed_copy(&data("frozen-golden").join(name), changes);
    let path = copy.path().join("model.safetensors");
    let mut weights = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    weights.insert(weight.to_owned(), value);
    candle_core::safetensors::save(&weights, path).unwrap();
    copy
}

/// A number that is added to all features of a position. The norm that follows removes it.
#[test]
fn adds_positions_to_every_row_of_a_batch() {
    let (name, weight) = (
        "deberta-v2-score",
        "deberta.embeddings.position_embeddings.weight",
    );
    let value = Tensor::arange(0.0f32, 64.0, &Device::Cpu)
        .unwrap()
        .affine(1e-3, 0.0)
        .unwrap();
    let value = value
        .unsqueeze(1)
        .unwrap()
        .broadcast_as((64, 16))
        .unwrap()
        .contiguous()
        .unwrap();
    let copy = copy_with(name, &json!({"position_biased_input": true}), weight, value);
    compare_with(copy.path(), name, None, 0);
}

#[test]
fn ignores_the_language_model_head_of_a_classifier() {
    let head = Tensor::ones((15, 16), candle_core::DType::F32, &Device::Cpu).unwrap();
    let copy = copy_with("qwen2-score", &json!({}), "lm_head.weight", head);
    compare_with(copy.path(), "qwen2-score", None, 0);
}

#[test]
fn scores_at_the_last_token_without_padding() {
    let model = load(&data("frozen-golden/qwen2-score"), None).unwrap();
    let score = |ids: &[u32], pad| model.score(&[ids.to_vec()], pad).unwrap()[0];
    assert_eq!(score(&[5, 0], PAD), score(&[5], PAD));
    assert!((score(&[5, 0], None) - score(&[5], PAD)).abs() > 1e-3);
}

/// Only the base of an adapter would be read.
#[test]
fn refuses_adapters_of_classifiers() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["qwen2-score", "bert-score"] {
        let adapter = folder.path().join(name);
        fs::create_dir(&adapter).unwrap();
        let config = json!({ "peft_type": "LORA", "base_model_name_or_path": data("frozen-golden").join(name) });
        fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
        let files = embedded::model_files(adapter.to_str().unwrap()).unwrap();
        let error = Classifier::load(&files, None, &Device::Cpu)
            .err()
            .unwrap()
            .to_string();
        let expected = "makes it an adapter, which is not supported for this model (merge it with PEFT, and name the merged one)";
        assert!(
            error.ends_with(expected) && error.contains("adapter_config.json"),
            "{error}"
        );
    }
}

/// The error for a checkpoint whose configuration has other values.
fn changed(name: &str, changes: &Value) -> String {
    let folder = changed_copy(&data("frozen-golden").join(name), changes);
    let error = load(folder.path(), None).err().expect("an error");
    format!("{error:#}").replace(&folder.path().display().to_string(), "FOLDER")
}

#[test]
fn refuses_unsupported_classifiers() {
    assert_eq!(
        changed(
            "qwen2-score",
            &json!({"architectures": ["Qwen2ForCausalLM"]})
        ),
        "cannot use `FOLDER/config.json`: `architectures` is `[\"Qwen2ForCausalLM\"]`, only `Qwen2ForSequenceClassification` of a `qwen2` model scores texts (use a reward model's directory)"
    );
    let shape = changed("qwen3-score", &json!({"id2label": {"0": "good"}}));
    assert!(shape.ends_with("tensor `score.weight` has shape [3, 16], expected [1, 16] (the weights and `config.json` must be of one model)"), "{shape}");
    let unknown = changed("qwen2-score", &json!({"logit_scale": 2}));
    assert!(
        unknown.contains("`logit_scale` is `2`, which is an unknown setting"),
        "{unknown}"
    );
    for (name, key, value, expected) in [
        (
            "bert-score",
            "logit_cap",
            json!(3),
            "config.json`: `logit_cap` is `3`, which is an unknown setting of a `bert` model (remove it if it changes nothing of what the model computes)",
        ),
        (
            "bert-score",
            "is_decoder",
            json!(true),
            "config.json`: `is_decoder` is `true`, but only `false` is supported for a `bert` model (use another checkpoint)",
        ),
        (
            "bert-score",
            "num_attention_heads",
            json!(0),
            "config.json`: `num_attention_heads` is 0, expected at least 1 (correct `config.json`)",
        ),
        (
            "bert-score",
            "vocab_size",
            json!(1_u64 << 62),
            "config.json`: `vocab_size` is 4611686018427387904, expected at most 2147483647 (correct `config.json`)",
        ),
        (
            "bert-score",
            "num_hidden_layers",
            json!(3),
            "is missing (the weights and `config.json` must be of one model)",
        ),
        (
            "bert-score",
            "num_hidden_layers",
            json!(1),
            "unexpected tensor `bert.encoder.layer.1.attention.output.LayerNorm.bias` (the weights and `config.json` must be of one model)",
        ),
        (
            "bert-score",
            "hidden_size",
            json!(18),
            "has shape [15, 16], expected [15, 18] (the weights and `config.json` must be of one model)",
        ),
        (
            "modernbert-score",
            "rope_parameters",
            json!({"rope_type": "yarn"}),
            "config.json`: `rope_type` of `rope_parameters` is `yarn`, only `default` is supported for a family that is not trained here (use another checkpoint)",
        ),
    ] {
        let said = changed(name, &json!({ key: value }));
        assert!(
            said.starts_with("cannot use `FOLDER/") || said.contains("cannot be used"),
            "{key}: {said}"
        );
        // With `RUST_BACKTRACE`, a backtrace follows.
        assert!(said.contains(expected), "{key}: {said}");
    }
    let longer = load(&data("frozen-golden/qwen2-score"), None)
        .unwrap()
        .score(&[vec![2; 65]], PAD)
        .unwrap_err()
        .to_string();
    assert_eq!(
        longer,
        "a text has 65 tokens, the model has 64 positions (cut it)"
    );
}
