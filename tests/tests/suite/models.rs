//! Model directories that are incomplete, damaged, or of another kind of model.

use insta::assert_snapshot;
use tests::Folder;

use crate::ONE_STEP;

/// A folder with the embedded model as the directory `model`.
pub fn with_model() -> Folder {
    let folder = Folder::new();
    folder.said("export --model embedded:tiny-arithmetic --out model");
    folder
}

/// The error after `change` to the text of `file`.
fn changed(file: &str, change: impl Fn(&str) -> String) -> String {
    let folder = with_model();
    let path = folder.path().join("model").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = change(&text);
    assert_ne!(text, changed, "the change changes something");
    std::fs::write(&path, changed).unwrap();
    folder.refused("train --set model.model_name_or_path=model")
}

#[test]
fn a_checkpoint_is_a_model() {
    let folder = Folder::new();
    let run = folder.train("run", ONE_STEP);
    std::fs::rename(run.last_checkpoint(), folder.path().join("model")).unwrap();
    let run = folder.train(
        "next",
        &format!("--set model.model_name_or_path=model {ONE_STEP}"),
    );
    assert_eq!(run.metrics().len(), 1);
    let eval = "eval --model model --num-prompts 16";
    assert_snapshot!(folder.refused(eval), @"nothing says what `model` is measured on (give rows with `--benchmark FILE`, or `--config FILE` with a `[data]` section)");
    let outcome = folder
        .host(&format!(
            "{eval} --set data.dataset_name=embedded:arithmetic"
        ))
        .succeeded();
    assert!(
        outcome.stdout.contains("\nheld-out accuracy "),
        "{}",
        outcome.stdout
    );
}

/// An error about a missing file names the files that the folder has in its place, and the way out.
#[test]
fn refuses_missing_and_incomplete_models() {
    let folder = with_model();
    folder.train("run", ONE_STEP);
    let (cache, index) = (
        "hub/models--org--name/snapshots/abc",
        "model.safetensors.index.json",
    );
    let cases: [(&str, &[&str], &[&str]); 9] = [
        ("bin", &["pytorch_model.bin"], &["model.safetensors"]),
        (
            "shards",
            &[
                "pytorch_model-00001-of-00002.bin",
                "pytorch_model.bin.index.json",
            ],
            &["model.safetensors"],
        ),
        ("sentencepiece", &["tokenizer.model"], &["tokenizer.json"]),
        ("words", &["vocab.json", "merges.txt"], &["tokenizer.json"]),
        ("half", &[index], &["model.safetensors"]),
        (cache, &[], &["model.safetensors"]),
        ("start", &[], &["config.json", "model.safetensors"]),
        (
            "other",
            &["params.json", "consolidated.00.pth"],
            &[
                "config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json",
            ],
        ),
        (
            "empty",
            &[],
            &[
                "config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json",
            ],
        ),
    ];
    let mut sentences = Vec::new();
    for (name, more, less) in cases {
        for file in tests::names(&folder.path().join("model"))
            .iter()
            .filter(|file| !less.contains(&file.as_str()))
        {
            folder.write(
                &format!("{name}/{file}"),
                folder.bytes(&format!("model/{file}")),
            );
        }
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
        let shard = "{\"weight_map\": {\"lm_head.weight\": \"model-00002-of-00002.safetensors\"}}";
        more.iter()
            .for_each(|file| drop(folder.write(&format!("{name}/{file}"), shard)));
        sentences.push(folder.refused(&format!("generate --model {name} 1+1=")));
    }
    let train =
        |model: &str| folder.refused(&format!("train --set model.model_name_or_path={model}"));
    sentences.extend(["model/model.safetensors", "run"].map(train));
    assert_snapshot!("models", sentences.join("\n"));
}

/// The error after a change to the model's configuration, for weights that are read and for fresh
/// weights. Both are shown if they differ.
fn oversized(key: &str, value: u64) -> String {
    let folder = with_model();
    let config = folder.bytes("model/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config[key] = value.into();
    folder.write("model/config.json", config.to_string());
    let train = "train --set model.model_name_or_path=model";
    let fresh = folder.refused(&format!("{train} --set model.fresh_weights=true"));
    // The free memory differs from machine to machine.
    let mut sentences = vec![
        folder.refused(train),
        fresh.split(", and ").next().unwrap().to_owned(),
    ];
    sentences.dedup();
    sentences.join("\n")
}

#[test]
fn refuses_sizes_that_no_machine_has() {
    assert_snapshot!(oversized("vocab_size", 1 << 62), @"cannot use `FOLDER/model/config.json`: `vocab_size` is 4611686018427387904, expected at most 2147483647 (correct `config.json`)");
    assert_snapshot!(oversized("vocab_size", 2_147_483_647), @r"
    `FOLDER/model/config.json` describes a model of 274878030272 weights, which need 512.1 GiB or more, but `FOLDER/model/model.safetensors` has 492.5 KiB (fetch it again; weights and `config.json` must be of one model)
    a model of 274878030272 weights takes 1.6 TiB of memory
    ");
    assert_snapshot!(oversized("intermediate_size", 9_223_372_036_854_775_807), @"cannot use `FOLDER/model/config.json`: `intermediate_size` is 9223372036854775807, expected at most 2147483647 (correct `config.json`)");
    assert_snapshot!(oversized("intermediate_size", 1_000_000_000), @r"
    `FOLDER/model/config.json` describes a model of 384000027072 weights, which need 715.3 GiB or more, but `FOLDER/model/model.safetensors` has 492.5 KiB (fetch it again; weights and `config.json` must be of one model)
    a model of 384000027072 weights takes 1.7 TiB of memory
    ");
    assert_snapshot!(oversized("num_hidden_layers", 1_000_000_000), @"cannot use `FOLDER/model/config.json`: `num_hidden_layers` is 1000000000, expected at most 4096 (correct `config.json`)");
    assert_snapshot!(oversized("head_dim", 2_147_483_646), @r"
    `FOLDER/model/config.json` describes a model of 3332894719136 weights, which need 6.1 TiB or more, but `FOLDER/model/model.safetensors` has 492.5 KiB (fetch it again; weights and `config.json` must be of one model)
    a model of 3332894719136 weights takes 14.2 TiB of memory
    ");
}

#[test]
fn refuses_damaged_tokenizers() {
    let said = |from: &str, to: &str| changed("tokenizer.json", |text| text.replace(from, to));
    // The tokenizers crate panics over a merge that is shorter than the prefix which it should
    // begin with.
    let bpe = r#"{"type": "BPE", "continuing_subword_prefix": "longer than that", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}"#;
    let panicked = changed("tokenizer.json", |text| {
        format!(
            "{}\"model\": {bpe}}}",
            text.split("\"model\"").next().unwrap()
        )
    });
    let expected = "cannot use `FOLDER/model/tokenizer.json`: it is damaged, or of a kind that is not supported (";
    assert!(panicked.starts_with(expected), "{panicked}");
    assert_snapshot!(said(r"[\\s\\S]", r"(\\w{1000}){1000}"), @"cannot use `FOLDER/model/tokenizer.json`: `tokenizer.json` cannot be read: its regular expressions have 2002000 characters, repetitions written out (at most 4096)");
    assert_snapshot!(said("\" \": 14", "\" \": 4294967295"), @"cannot use `FOLDER/model/tokenizer.json`: `tokenizer.json` cannot be read: it has a token with the id 4294967295 (ids end at 16777215)");
}

#[test]
fn refuses_wrong_configurations() {
    assert_snapshot!(changed("config.json", |text| text.replace("qwen2", "gpt2")), @"cannot use `FOLDER/model/config.json`: `model_type` is `gpt2`, supported are `llama`, `mistral`, `qwen2` and `qwen3` (use a checkpoint of one of these families)");
    assert_snapshot!(changed("config.json", |text| text[..30].to_owned()), @"cannot use `FOLDER/model/config.json`: not a JSON object: EOF while parsing a string at line 3 column 7");
    assert_snapshot!(changed("config.json", |text| text.replace("embeddings\": 64", "embeddings\": 0")), @"cannot use `FOLDER/model/config.json`: `max_position_embeddings` is 0, expected at least 1 (correct `config.json`)");
    assert_snapshot!(changed("config.json", |text| text.replace("embeddings\": 64", "embeddings\": 39")), @"`data.max_prompt_length` 16 and `rollout.max_completion_length` 24 make 40 tokens, the model has 39 positions (lower one of them)");
    assert_snapshot!(changed("tokenizer.json", |text| text[..30].to_owned()), @"cannot use `FOLDER/model/tokenizer.json`: `tokenizer.json` cannot be read: EOF while parsing an object at line 4 column 2");
}

#[test]
fn ignores_the_authors_training_settings() {
    let folder = with_model();
    let more = r#""_model_name_or_path": "org/model", "auto_map": {"AutoConfig": "a.B"}, "author": "somebody", "_rate": 3,"#;
    folder.replace(
        "model/config.json",
        "\"model_type\"",
        &format!("{more} \"model_type\""),
    );
    let warned = folder
        .host("generate --model model --max-completion-length 1 1+1=")
        .succeeded()
        .stderr;
    assert_snapshot!(warned.trim_end(), @"warning: `config.json` of a `qwen2` model has unknown keys, which are ignored: `_model_name_or_path`, `_rate`, `author`, `auto_map` (docs/models.md#what-is-refused)");
    folder.train(
        "next",
        &format!("--set model.model_name_or_path=model {ONE_STEP}"),
    );
}
