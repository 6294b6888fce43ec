//! Models that score texts against Hugging Face transformers (numbers made by `data/frozen-golden/make.py`).

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::Device;
use host::model::ModelFiles;
use host::model::frozen::Classifier;
use serde::Deserialize;

/// What fills rows up.
const PAD: u32 = 0;

#[derive(Deserialize)]
struct Row {
    ids: Vec<u32>,
    scores: Vec<f32>,
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/frozen-golden").join(name)
}

fn load(directory: &Path, label: Option<&str>) -> anyhow::Result<Classifier> {
    Classifier::load(&ModelFiles::Directory(directory.to_owned()), label, &Device::Cpu)
}

fn golden(name: &str) -> Vec<Row> {
    serde_json::from_slice(&fs::read(data(name).join("scores.json")).unwrap()).unwrap()
}

/// Compares the output `output`, called `label`, in one ragged batch and one text at a time.
fn compare(name: &str, label: Option<&str>, output: usize) {
    let model = load(&data(name), label).unwrap();
    let rows = golden(name);
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

/// The sentence about a checkpoint whose configuration has another value.
fn changed(name: &str, key: &str, value: serde_json::Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(data(name).join(file), folder.path().join(file)).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json[key] = value;
    fs::write(&path, json.to_string()).unwrap();
    let error = load(folder.path(), None).err().expect(key);
    format!("{error:#}").replace(&folder.path().display().to_string(), "FOLDER")
}

#[test]
fn what_cannot_be_used_is_told() {
    let said = |key, value| changed("qwen2-score", key, value);
    assert_eq!(
        said("architectures", serde_json::json!(["Qwen2ForCausalLM"])),
        "cannot use `FOLDER/config.json`: `architectures` is `[\"Qwen2ForCausalLM\"]`, only `Qwen2ForSequenceClassification` of a `qwen2` model scores texts (use a reward model's directory)"
    );
    assert_eq!(
        said("id2label", serde_json::json!({"0": "bad", "1": "good"})),
        "the model has 2 outputs, `bad`, `good` (choose one with `label`)"
    );
    let shape = changed("qwen3-score", "id2label", serde_json::json!({"0": "good"}));
    assert!(shape.ends_with("tensor `score.weight` has shape [3, 16], expected [1, 16] (the weights and `config.json` must be of one model)"), "{shape}");
    let unknown = said("logit_scale", serde_json::json!(2));
    assert!(unknown.contains("`logit_scale` is `2`, which is no setting that is known"), "{unknown}");
    let longer = load(&data("qwen2-score"), None).unwrap().score(&[vec![2; 65]], PAD).unwrap_err().to_string();
    assert_eq!(longer, "a text has 65 tokens, the model has 64 positions (cut it)");
}
