//! Reading and writing Hugging Face directories, and the errors of broken ones.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use host_model::{Config, ModelFiles, Policy, Rotary, Scaling};
use serde_json::json;
use tempfile::TempDir;

use crate::shared::{bits, changed_copy, data, load, random};

fn golden(name: &str) -> PathBuf {
    data("qwen2-golden").join(name)
}

/// A copy of a golden checkpoint that a test may break.
fn copy(name: &str) -> TempDir {
    changed_copy(&golden(name), &json!({}))
}

/// The tensors of the untied checkpoint, each passed through `change`.
fn rewrite(directory: &Path, change: impl Fn(&str, Tensor) -> Option<Tensor>) {
    let path = directory.join("model.safetensors");
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let changed = tensors
        .into_iter()
        .filter_map(|(name, tensor)| change(&name, tensor).map(|tensor| (name, tensor)));
    candle_core::safetensors::save(&changed.collect(), path).unwrap();
}

fn message(directory: &Path) -> String {
    let error = format!("{:#}", load(directory).err().expect("an error"));
    println!("{error}");
    assert!(
        error.contains(&directory.display().to_string()),
        "no path in: {error}"
    );
    error
}

#[test]
fn loads_embedded_files_like_a_directory() {
    static FILES: &[(&str, &[u8])] = &[
        (
            "config.json",
            include_bytes!("../data/qwen2-golden/tied/config.json"),
        ),
        (
            "model.safetensors",
            include_bytes!("../data/qwen2-golden/tied/model.safetensors"),
        ),
    ];
    let embedded = Policy::load(&ModelFiles::Embedded(FILES), &Device::Cpu).unwrap();
    assert_eq!(bits(&embedded), bits(&load(&golden("tied")).unwrap()));
    let error = Policy::load(&ModelFiles::Embedded(&FILES[..1]), &Device::Cpu)
        .err()
        .unwrap();
    assert!(
        format!("{error:#}").contains("the built-in model has no file `model.safetensors`"),
        "{error:#}"
    );
}

#[test]
fn loads_shards_like_one_file() {
    let directory = copy("untied");
    let whole = directory.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&whole, &Device::Cpu).unwrap();
    fs::remove_file(whole).unwrap();
    let mut map = serde_json::Map::new();
    for (shard, odd) in [
        ("model-1.safetensors", false),
        ("model-2.safetensors", true),
    ] {
        let part = tensors
            .iter()
            .filter(|(name, _)| (name.len() % 2 == 1) == odd);
        let part: std::collections::HashMap<_, _> = part
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect();
        part.keys()
            .for_each(|name| _ = map.insert(name.clone(), shard.into()));
        candle_core::safetensors::save(&part, directory.path().join(shard)).unwrap();
    }
    let index = json!({ "metadata": {}, "weight_map": map });
    fs::write(
        directory.path().join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    assert_eq!(
        bits(&load(directory.path()).unwrap()),
        bits(&load(&golden("untied")).unwrap())
    );

    fs::remove_file(directory.path().join("model-2.safetensors")).unwrap();
    assert!(message(directory.path()).contains("model-2.safetensors"));
    fs::write(
        directory.path().join("model.safetensors.index.json"),
        r#"{"weight_map": {"a": "../x"}}"#,
    )
    .unwrap();
    assert!(message(directory.path()).contains("`../x` is not a plain file name"));
}

#[test]
fn reads_half_precision_weights_as_f32() {
    for dtype in [DType::BF16, DType::F16] {
        let directory = copy("untied");
        rewrite(directory.path(), |_, tensor| {
            Some(tensor.to_dtype(dtype).unwrap())
        });
        let half = load(directory.path()).unwrap();
        for (name, var) in load(&golden("untied")).unwrap().params().iter() {
            let expected = var.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
            let actual = half.params().get(name).unwrap().as_detached_tensor();
            assert_eq!(actual.dtype(), DType::F32);
            let difference = (actual - expected)
                .unwrap()
                .abs()
                .unwrap()
                .sum_all()
                .unwrap();
            assert_eq!(difference.to_scalar::<f32>().unwrap(), 0.0, "{name}");
        }
    }
}

#[test]
fn names_a_missing_file() {
    assert!(message(&TempDir::new().unwrap().path().join("nowhere")).contains("config.json"));
    for file in ["config.json", "model.safetensors"] {
        let directory = copy("tied");
        let path = directory.path().join(file);
        fs::remove_file(&path).unwrap();
        let expected = format!(
            "cannot read `{}`: No such file or directory (os error 2) (the folder has `",
            path.display()
        );
        assert!(message(directory.path()).starts_with(&expected));
    }
}

/// The advice names the class of the model, because only that class keeps its head, and another
/// folder, because only then the old weights stay.
#[test]
fn shows_how_to_convert_to_safetensors() {
    for (changes, file, weights, class) in [
        (
            json!({}),
            "pytorch_model.bin",
            "model.safetensors",
            "transformers.AutoModelForCausalLM",
        ),
        (
            json!({"architectures": ["Qwen2ForSequenceClassification"]}),
            "pytorch_model-00001-of-00002.bin",
            "model.safetensors",
            "transformers.AutoModelForSequenceClassification",
        ),
        (
            json!({}),
            "adapter_model.bin",
            "adapter_model.safetensors",
            "peft.AutoPeftModelForCausalLM",
        ),
    ] {
        let [folder, base] =
            [&changes, &json!({})].map(|changes| changed_copy(&golden("tied"), changes));
        fs::rename(
            folder.path().join("model.safetensors"),
            folder.path().join(file),
        )
        .unwrap();
        let own = Box::new(ModelFiles::Directory(folder.path().to_owned()));
        let base = Box::new(ModelFiles::Directory(base.path().to_owned()));
        let is_adapter = weights.starts_with("adapter");
        let files = if is_adapter {
            ModelFiles::Adapter { own, base }
        } else {
            *own
        };
        let said = format!("{:#}", files.read(weights).unwrap_err())
            .replace(folder.path().to_str().unwrap(), "DIR");
        assert_eq!(
            said,
            format!(
                "cannot read `DIR/{weights}`: No such file or directory (os error 2) (its weights are in `{file}`, and only safetensors are read: write it anew in Python: `{class}.from_pretrained(\"DIR\").save_pretrained(\"DIR/safetensors\")`, copy the tokenizer's files there, and name `DIR/safetensors`)"
            )
        );
    }
}

#[test]
fn reads_a_tokenizer_from_one_folder() {
    let [own, base] = [(); 2].map(|()| TempDir::new().unwrap());
    let write = |folder: &TempDir, name: &str| fs::write(folder.path().join(name), "{}").unwrap();
    ["config.json", "tokenizer.json", "chat_template.jinja"]
        .iter()
        .for_each(|name| write(&base, name));
    ["tokenizer_config.json", "generation_config.json"]
        .iter()
        .for_each(|name| write(&own, name));
    let [first, second] =
        [&own, &base].map(|folder| Box::new(ModelFiles::Directory(folder.path().to_owned())));
    let files = ModelFiles::Adapter {
        own: first,
        base: second,
    };
    let tokenizers = [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ];
    let in_folder = |folder: &TempDir, name: &str| {
        files
            .describe(name)
            .contains(folder.path().to_str().unwrap())
    };
    assert!(
        tokenizers.iter().all(|name| in_folder(&base, name))
            && files.contains("chat_template.jinja")
    );
    write(&own, "tokenizer.json");
    assert!(
        tokenizers.iter().all(|name| in_folder(&own, name))
            && !files.contains("chat_template.jinja")
    );
    assert!(in_folder(&base, "config.json") && in_folder(&own, "generation_config.json"));
    assert!(
        ["adapter_model.safetensors", "base.json"]
            .iter()
            .all(|name| in_folder(&own, name))
    );
}

#[test]
fn initializes_the_embedding_of_padding_to_zero() {
    let json = fs::read_to_string(golden("untied").join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json["pad_token_id"] = (-2).into();
    let policy = random(&json.to_string(), 3);
    for (name, is_zero) in [
        ("model.embed_tokens.weight", true),
        ("lm_head.weight", false),
    ] {
        let rows: Vec<Vec<f32>> = policy.params().get(name).unwrap().to_vec2().unwrap();
        for (id, row) in rows.iter().enumerate() {
            assert_eq!(
                row.iter().all(|value| *value == 0.0),
                is_zero && id + 2 == rows.len(),
                "{name} {id}"
            );
        }
    }
}

#[test]
fn refuses_weights_truncated_at_any_length() {
    let directory = copy("tied");
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for length in [0, 1, 7, 8, 100, 2000, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        let message = message(directory.path());
        let size = if length == 2000 {
            "2.0 KiB".to_owned()
        } else {
            format!("{length} bytes")
        };
        let told =
            format!("has {size} (fetch it again; weights and `config.json` must be of one model)");
        let whole = "not a whole safetensors file: incomplete metadata, file not fully covered (fetch the file again)";
        assert!(
            if length < bytes.len() / 2 {
                message.ends_with(&told)
            } else {
                message.ends_with(whole)
            },
            "{length} bytes: {message}"
        );
    }
    let mut long = bytes.clone();
    long.push(0);
    fs::write(&path, &long).unwrap();
    assert!(message(directory.path()).contains("not a whole safetensors file"));
}

#[test]
fn names_tensors_that_do_not_fit_the_model() {
    let (bias, other) = (
        "model.layers.1.self_attn.q_proj.bias",
        "(the weights and `config.json` must be of one model)",
    );
    let directory = copy("untied");
    rewrite(directory.path(), |name, tensor| {
        (name != bias).then_some(tensor)
    });
    assert!(message(directory.path()).contains(&format!("tensor `{bias}` is missing {other}")));

    let directory = copy("untied");
    rewrite(directory.path(), |name, tensor| {
        Some(if name == bias {
            tensor.narrow(0, 0, 31).unwrap().copy().unwrap()
        } else {
            tensor
        })
    });
    assert!(message(directory.path()).contains(&format!(
        "tensor `{bias}` has shape [31], expected [32] {other}"
    )));

    let directory = copy("untied");
    fs::copy(
        golden("tied").join("config.json"),
        directory.path().join("config.json"),
    )
    .unwrap();
    assert!(
        message(directory.path())
            .contains("tensor `lm_head.weight` differs from `model.embed_tokens.weight`")
    );

    let directory = copy("tied");
    fs::copy(
        golden("untied").join("config.json"),
        directory.path().join("config.json"),
    )
    .unwrap();
    assert!(message(directory.path()).contains("tensor `lm_head.weight` is missing"));

    let directory = changed_copy(&golden("untied"), &json!({"num_hidden_layers": 1}));
    let unexpected = message(directory.path());
    assert!(
        unexpected.contains("unexpected tensor `model.layers.1.") && unexpected.ends_with(other),
        "{unexpected}"
    );

    let directory = copy("untied");
    rewrite(directory.path(), |_, tensor| {
        Some(tensor.to_dtype(DType::F64).unwrap())
    });
    assert!(message(directory.path()).contains("dtype F64 is not supported"));
}

#[test]
fn writes_configurations_for_transformers_4_and_5() {
    let json = fs::read_to_string(golden("tied").join("config.json")).unwrap();
    let new = r#""rope_parameters": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.0}, "dtype": "bfloat16""#;
    let json = json.replace(r#""rope_theta": 10000.0"#, new);
    let config = Config::from_json(json.as_bytes()).unwrap();
    let rotary = Rotary {
        theta: 5000.0,
        scaling: Scaling::Linear { factor: 2.0 },
    };
    assert_eq!(config.rotary, rotary);
    let text = config.to_json().unwrap();
    assert_eq!(Config::from_json(text.as_bytes()).unwrap().rotary, rotary);
    let written: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["rope_parameters"]["rope_theta"], 5000.0);
    assert_eq!(
        (&written["rope_theta"], &written["rope_scaling"]["factor"]),
        (&5000.0.into(), &2.0.into())
    );
    assert_eq!(
        (&written["dtype"], &written["torch_dtype"]),
        (&"float32".into(), &"float32".into())
    );
}

#[test]
fn refuses_to_read_and_write_numbers_that_are_not_finite() {
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let directory = copy("untied");
        let whole = load(directory.path()).unwrap();
        let norm = |name: &str| name == "model.norm.weight";
        rewrite(directory.path(), |name, tensor| {
            Some(if norm(name) {
                tensor.affine(number, 0.0).unwrap()
            } else {
                tensor
            })
        });
        let refused = "cannot read tensor `model.norm.weight`: some of its numbers are infinite or NaN (use another checkpoint, or fetch the file again)";
        assert!(message(directory.path()).ends_with(refused));

        let var = whole.params().get("model.norm.weight").unwrap();
        var.set(&var.affine(number, 0.0).unwrap()).unwrap();
        let out = TempDir::new().unwrap();
        let error = format!("{:#}", whole.save(out.path()).unwrap_err());
        assert!(
            error.ends_with("`model.norm.weight` has a number that is not finite"),
            "{error}"
        );
        assert_eq!(
            fs::read_dir(out.path()).unwrap().count(),
            0,
            "nothing is left behind"
        );
    }
}
