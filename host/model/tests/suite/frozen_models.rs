//! Models that are only read, against Hugging Face transformers (numbers made by `data/frozen-golden/make.py`).

use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use host_model::frozen::{Classifier, Reference};
use host_model::{ModelFiles, Sequences, Wants, embedded};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::shared::{batch, changed_copy, data, json};

/// Id of the tokens that fill rows up.
const PAD: u32 = 0;

#[derive(Deserialize)]
struct Row {
    ids: Vec<u32>,
    scores: Vec<f32>,
}

fn load(directory: &Path, label: Option<&str>) -> anyhow::Result<Classifier> {
    Classifier::load(&ModelFiles::Directory(directory.to_owned()), label, &Device::Cpu)
}

fn golden<T: DeserializeOwned>(name: &str, file: &str) -> Vec<T> {
    json(&data("frozen-golden").join(name).join(file))
}

/// Compares the output `output`, called `label`, in one ragged batch and one text at a time.
fn compare(name: &str, label: Option<&str>, output: usize) {
    let model = load(&data("frozen-golden").join(name), label).unwrap();
    let rows: Vec<Row> = golden(name, "scores.json");
    let ids: Vec<Vec<u32>> = rows.iter().map(|row| row.ids.clone()).collect();
    let together = model.score(&ids, PAD).unwrap();
    let alone = ids.iter().map(|ids| model.score(std::slice::from_ref(ids), PAD).unwrap()[0]);
    for ((together, alone), row) in together.iter().zip(alone).zip(&rows) {
        let expected = row.scores[output];
        assert!((together - expected).abs() < 1e-4, "{name}: {together} {expected}");
        assert!((alone - expected).abs() < 1e-4, "{name}: alone {alone} {expected}");
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
    for name in ["bert-score", "deberta-v2-score", "modernbert-score", "xlm-roberta-score"] {
        compare(name, None, 0);
    }
}

#[derive(Deserialize)]
struct Completion {
    prompt_ids: Vec<u32>,
    completion_ids: Vec<u32>,
    logps: Vec<f32>,
}

#[test]
fn references_have_the_log_probabilities_of_transformers() {
    for name in ["gemma", "glm4", "qwen3-moe", "smollm3"] {
        let rows: Vec<Completion> = golden(name, "logps.json");
        let files = ModelFiles::Directory(data("frozen-golden").join(name));
        let reference = Reference::load(&files, 40, DType::F32, &Device::Cpu).unwrap();
        assert!(matches!(reference, Reference::Other(_)), "{name}");
        let logps = |rows: &Sequences| reference.forward(rows, 0.9).unwrap().outputs(&Wants::default()).unwrap().logps;
        let pairs: Vec<(&[u32], &[u32])> =
            rows.iter().map(|row| (row.prompt_ids.as_slice(), row.completion_ids.as_slice())).collect();
        let whole = batch(&pairs);
        let together = logps(&whole);
        assert_eq!(together, logps(&whole), "{name}: nothing is left of a pass");
        for ((row, pair), together) in rows.iter().zip(&pairs).zip(together.chunks_exact(whole.completion_len)) {
            let alone = logps(&batch(&[*pair]));
            for ((expected, together), alone) in row.logps.iter().zip(together).zip(&alone) {
                assert!((together - expected).abs() < 1e-4, "{name}: {together} {expected}");
                assert!((alone - expected).abs() < 1e-4, "{name}: alone {alone} {expected}");
            }
        }
    }
}

/// Of an adapter the base alone would be read.
#[test]
fn adapters_of_models_that_score_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["qwen2-score", "bert-score"] {
        let adapter = folder.path().join(name);
        fs::create_dir(&adapter).unwrap();
        let config =
            serde_json::json!({ "peft_type": "LORA", "base_model_name_or_path": data("frozen-golden").join(name) });
        fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
        let files = embedded::model_files(adapter.to_str().unwrap()).unwrap();
        let error = Classifier::load(&files, None, &Device::Cpu).err().unwrap().to_string();
        let expected =
            "makes it an adapter, which is not supported of this model (merge it with PEFT, and name the merged one)";
        assert!(error.ends_with(expected) && error.contains("adapter_config.json"), "{error}");
    }
}

/// The sentence about a checkpoint whose configuration has other values.
fn changed(name: &str, changes: &Value) -> String {
    let folder = changed_copy(&data("frozen-golden").join(name), changes);
    let error = load(folder.path(), None).err().expect("an error");
    format!("{error:#}").replace(&folder.path().display().to_string(), "FOLDER")
}

#[test]
fn what_cannot_be_used_is_told() {
    assert_eq!(
        changed("qwen2-score", &serde_json::json!({"architectures": ["Qwen2ForCausalLM"]})),
        "cannot use `FOLDER/config.json`: `architectures` is `[\"Qwen2ForCausalLM\"]`, only `Qwen2ForSequenceClassification` of a `qwen2` model scores texts (use a reward model's directory)"
    );
    let shape = changed("qwen3-score", &serde_json::json!({"id2label": {"0": "good"}}));
    assert!(shape.ends_with("tensor `score.weight` has shape [3, 16], expected [1, 16] (the weights and `config.json` must be of one model)"), "{shape}");
    let unknown = changed("qwen2-score", &serde_json::json!({"logit_scale": 2}));
    assert!(unknown.contains("`logit_scale` is `2`, which is an unknown setting"), "{unknown}");
    let longer =
        load(&data("frozen-golden/qwen2-score"), None).unwrap().score(&[vec![2; 65]], PAD).unwrap_err().to_string();
    assert_eq!(longer, "a text has 65 tokens, the model has 64 positions (cut it)");
}
