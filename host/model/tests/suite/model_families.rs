//! Every family and every switch of a decoder against Hugging Face transformers (numbers made by
//! `data/families-golden/make.py`).

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use host_model::{Config, Generation, SampledTokens, Scaling, Wants, shapes};
use host_rng::stream;
use serde_json::{Map, Value, json};

use crate::shared::{
    self, assert_golden, batch, bits, d_logps, data, distance, load, logits_of_rows, rows,
    sampling, tensors,
};

const NAMES: [&str; 7] = [
    "llama2",
    "llama3",
    "llama-biased",
    "mistral",
    "qwen2-yarn",
    "qwen3",
    "qwen3-biased",
];

fn folder(name: &str) -> PathBuf {
    data("families-golden").join(name)
}

#[test]
fn logits_match_transformers() {
    for name in NAMES {
        let expected = tensors("families-golden", name)["logits"]
            .narrow(1, 3, 7)
            .unwrap();
        let distance = distance(&logits_of_rows(&load(&folder(name)).unwrap()), &expected);
        println!("{name}: {distance:.1e}");
        assert!(distance < 1e-5, "{name}: {distance:e}");
    }
}

#[test]
fn logps_and_gradients_match_transformers() {
    for name in NAMES {
        let (policy, golden) = (
            load(&folder(name)).unwrap(),
            tensors("families-golden", name),
        );
        let forward = policy.forward(&rows(6), 0.9).unwrap();
        let logps = forward.outputs(&Wants::default()).unwrap().logps;
        let logps = Tensor::from_vec(logps, (2, 5), &Device::Cpu).unwrap();
        assert!(distance(&logps, &golden["logps"]) < 1e-5, "{name}");
        let gradients = forward.backward(&d_logps()).unwrap();
        assert!(
            gradients
                .iter()
                .map(|(weight, _)| weight)
                .eq(shapes(policy.config()).keys())
        );
        assert_eq!(gradients.iter().count() + 2, golden.len());
        assert_golden(name, &gradients, &golden);
    }
}

#[test]
fn gradients_of_some_rows_equal_those_of_a_batch_of_them() {
    for name in NAMES {
        let forward = load(&folder(name)).unwrap().forward(&rows(6), 0.9).unwrap();
        let d_logps = [[0.0; 5], [0.3, -0.2, 0.0, 1.0, 0.5]].concat();
        let some = forward.backward_of_nonzero(&d_logps).unwrap().unwrap();
        for (weight, gradient) in forward.backward(&d_logps).unwrap().iter() {
            let distance = distance(some.get(weight).unwrap(), gradient);
            assert!(distance < 1e-5, "{name}: {weight}: {distance:e}");
        }
    }
}

#[test]
fn sampler_and_forward_pass_agree_on_log_probabilities() {
    for name in NAMES {
        let policy = load(&folder(name)).unwrap();
        for (temperature, top_k, top_p) in [(1.0, 0, 1.0), (0.7, 5, 0.9)] {
            let generation = Generation {
                eos_ids: vec![1],
                ..sampling(temperature, top_k, top_p)
            };
            let prompts = vec![vec![3, 20, 9, 4], vec![7]];
            let mut rngs: Vec<_> = (0..2).map(|row| stream(3, "test", &[row])).collect();
            let completions = policy.generate(&prompts, &generation, &mut rngs).unwrap();
            for (prompt, SampledTokens { ids, logps, .. }) in prompts.into_iter().zip(completions) {
                let row = batch(&[(&prompt, &ids)]);
                let outputs = policy
                    .forward_detached(&row, temperature)
                    .unwrap()
                    .outputs(&Wants::default())
                    .unwrap();
                for (drawn, passed) in logps.iter().zip(&outputs.logps) {
                    assert!(
                        (drawn - passed).abs() < 1e-4,
                        "{name} at {temperature}: {drawn} {passed}"
                    );
                }
            }
        }
    }
}

fn config(directory: &Path) -> Map<String, Value> {
    shared::json(&directory.join("config.json"))
}

/// `make.py --check` reads the models that this test writes with transformers.
#[test]
fn saves_all_bits_and_all_keys() {
    for name in NAMES {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("families")
            .join(name);
        let policy = load(&folder(name)).unwrap();
        policy.save(&directory).unwrap();
        let again = load(&directory).unwrap();
        assert_eq!(bits(&policy), bits(&again), "{name}");
        again.save(&directory).unwrap();
        assert_eq!(
            fs::read_dir(&directory).unwrap().count(),
            2,
            "nothing else is left behind"
        );
        assert_eq!(policy.config().rotary, again.config().rotary, "{name}");
        let (before, mut after) = (config(&folder(name)), config(&directory));
        assert_eq!(after.remove("torch_dtype"), Some(json!("float32")));
        for (key, value) in before.iter().filter(|(key, _)| *key != "torch_dtype") {
            assert_eq!(after.get(key), Some(value), "{name}: {key}");
        }
        assert_eq!(
            logits_of_rows(&policy).to_vec3::<f32>().unwrap(),
            logits_of_rows(&again).to_vec3::<f32>().unwrap()
        );
    }
}

#[test]
fn reads_switches() {
    let config = |name: &str| load(&folder(name)).unwrap().config().clone();
    assert_eq!(
        (
            config("llama2").num_key_value_heads,
            config("mistral").head_dim()
        ),
        (2, 6)
    );
    assert!(matches!(
        config("llama3").rotary.scaling,
        Scaling::Llama3 { original: 16.0, .. }
    ));
    let Scaling::Yarn {
        attention_factor,
        truncate,
        ..
    } = config("qwen3-biased").rotary.scaling
    else {
        panic!("yarn")
    };
    assert!(!truncate && attention_factor > 1.0 && attention_factor < 1.1);
    let without = changed("qwen3", &json!({"head_dim": null})).unwrap();
    assert_eq!(without.head_dim(), 128, "what transformers takes");
}

/// The values in a file of `families-golden`, one on each line.
fn json_lines(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder(name)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The configuration of a checkpoint with `changes`, an object; null removes a key.
fn changed(name: &str, changes: &Value) -> anyhow::Result<Config> {
    let mut json = config(&folder(name));
    json.extend(changes.as_object().unwrap().clone());
    json.retain(|_, value| !value.is_null());
    Config::from_json(&serde_json::to_vec(&json).unwrap())
}

#[test]
fn refuses_unknown_settings() {
    for case in json_lines("refused.jsonl") {
        let error =
            changed(case["model"].as_str().unwrap(), &case["change"]).expect_err(&case.to_string());
        let error = format!("{error:#}");
        println!("{error}");
        assert!(
            error.starts_with(case["error"].as_str().unwrap()),
            "{error}"
        );
    }
}

#[test]
fn keeps_settings_without_effect() {
    for (name, changes) in [
        (
            "llama3",
            json!({"pretraining_tp": 2, "rope_interleaved": false, "attention_dropout": 0}),
        ),
        (
            "llama3",
            json!({"torch_dtype": "bfloat16", "id2label": {"0": "a"}}),
        ),
        ("mistral", json!({"sliding_window": 64})),
        (
            "qwen2-yarn",
            json!({"attention_bias": true, "use_mrope": false}),
        ),
        ("llama-biased", json!({"rope_theta": 7.0})),
    ] {
        changed(name, &changes).unwrap();
    }
    // A key whose value is null, which `changed` would remove.
    let null = fs::read_to_string(folder("llama3").join("config.json")).unwrap();
    Config::from_json(
        null.replacen('{', r#"{"sliding_window": null,"#, 1)
            .as_bytes(),
    )
    .unwrap();
}

/// `config.json` as published, and the published number of the model's weights.
#[test]
fn counts_the_weights_of_published_models() {
    for case in json_lines("published.jsonl") {
        let config = Config::from_json(&serde_json::to_vec(&case["config"]).unwrap()).unwrap();
        let sizes = shapes(&config)
            .into_values()
            .map(|shape| shape.iter().product::<usize>());
        assert_eq!(sizes.sum::<usize>() as u64, case["weights"], "{case}");
    }
}
