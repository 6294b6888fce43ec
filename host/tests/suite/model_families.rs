//! Every family and every switch of a decoder against Hugging Face transformers (numbers made by `data/families-golden/make.py`).

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use host::model::{Config, Generation, SampledTokens, Scaling, Wants, shapes};
use host_ops::rng::stream;
use serde_json::{Map, Value, json};

use crate::shared::{
    self, assert_golden, batch, bits, d_logps, data, distance, load, logits_of_rows, rows, sampling, tensors,
};

const NAMES: [&str; 7] = ["llama2", "llama3", "llama-biased", "mistral", "qwen2-yarn", "qwen3", "qwen3-biased"];

fn folder(name: &str) -> PathBuf {
    data("families-golden").join(name)
}

#[test]
fn logits_are_those_of_transformers() {
    for name in NAMES {
        let expected = tensors("families-golden", name)["logits"].narrow(1, 3, 7).unwrap();
        let distance = distance(&logits_of_rows(&load(&folder(name)).unwrap()), &expected);
        println!("{name}: {distance:.1e}");
        assert!(distance < 1e-5, "{name}: {distance:e}");
    }
}

#[test]
fn logps_and_gradients_are_those_of_transformers() {
    for name in NAMES {
        let (policy, golden) = (load(&folder(name)).unwrap(), tensors("families-golden", name));
        let forward = policy.forward(&rows(6), 0.9).unwrap();
        let logps = forward.outputs(&Wants::default()).unwrap().logps;
        let logps = Tensor::from_vec(logps, (2, 5), &Device::Cpu).unwrap();
        assert!(distance(&logps, &golden["logps"]) < 1e-5, "{name}");
        let gradients = forward.backward(&d_logps()).unwrap();
        assert!(gradients.iter().map(|(weight, _)| weight).eq(shapes(policy.config()).keys()));
        assert_eq!(gradients.iter().count() + 2, golden.len());
        assert_golden(name, &gradients, &golden);
    }
}

#[test]
fn gradients_of_some_rows_are_theirs_alone() {
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
fn what_was_drawn_with_a_cache_is_as_probable_without() {
    for name in NAMES {
        let policy = load(&folder(name)).unwrap();
        for (temperature, top_k, top_p) in [(1.0, 0, 1.0), (0.7, 5, 0.9)] {
            let generation = Generation { eos_ids: vec![1], ..sampling(temperature, top_k, top_p) };
            let prompts = vec![vec![3, 20, 9, 4], vec![7]];
            let mut rngs: Vec<_> = (0..2).map(|row| stream(3, "test", &[row])).collect();
            let completions = policy.generate(&prompts, &generation, &mut rngs).unwrap();
            for (prompt, SampledTokens { ids, logps, .. }) in prompts.into_iter().zip(completions) {
                let row = batch(&[(&prompt, &ids)]);
                let outputs = policy.forward_detached(&row, temperature).unwrap().outputs(&Wants::default()).unwrap();
                for (drawn, passed) in logps.iter().zip(&outputs.logps) {
                    assert!((drawn - passed).abs() < 1e-4, "{name} at {temperature}: {drawn} {passed}");
                }
            }
        }
    }
}

fn config(directory: &Path) -> Map<String, Value> {
    shared::json(&directory.join("config.json"))
}

/// Transformers reads the models that this test writes: `make.py --check`.
#[test]
fn saved_models_have_the_same_bits_and_all_keys() {
    for name in NAMES {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("families").join(name);
        let policy = load(&folder(name)).unwrap();
        policy.save(&directory).unwrap();
        let again = load(&directory).unwrap();
        assert_eq!(bits(&policy), bits(&again), "{name}");
        again.save(&directory).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing else is left behind");
        assert_eq!(policy.config().rotary, again.config().rotary, "{name}");
        let (before, mut after) = (config(&folder(name)), config(&directory));
        assert_eq!(after.remove("torch_dtype"), Some(json!("float32")));
        for (key, value) in before.iter().filter(|(key, _)| *key != "torch_dtype") {
            assert_eq!(after.get(key), Some(value), "{name}: {key}");
        }
        assert_eq!(logits_of_rows(&policy).to_vec3::<f32>().unwrap(), logits_of_rows(&again).to_vec3::<f32>().unwrap());
    }
}

#[test]
fn switches_are_read() {
    let config = |name: &str| load(&folder(name)).unwrap().config().clone();
    assert_eq!((config("llama2").num_key_value_heads, config("mistral").head_dim()), (2, 6));
    assert!(matches!(config("llama3").rotary.scaling, Scaling::Llama3 { original: 16.0, .. }));
    let Scaling::Yarn { attention_factor, truncate, .. } = config("qwen3-biased").rotary.scaling else {
        panic!("yarn")
    };
    assert!(!truncate && attention_factor > 1.0 && attention_factor < 1.1);
    let without = changed("qwen3", r#""head_dim": null"#).unwrap();
    assert_eq!(without.head_dim(), 128, "what transformers takes");
}

/// The configuration of a checkpoint with `changes`, keys and values in JSON; null removes a key.
fn changed(name: &str, changes: &str) -> anyhow::Result<Config> {
    let mut json = config(&folder(name));
    json.extend(serde_json::from_str::<Map<String, Value>>(&format!("{{{changes}}}")).unwrap());
    json.retain(|_, value| !value.is_null());
    Config::from_json(&serde_json::to_vec(&json).unwrap())
}

#[test]
fn settings_that_are_not_understood_are_told() {
    let cases = [
        (
            "llama2",
            r#""model_type": "LLAMA""#,
            "`model_type` is `LLAMA`, supported are `llama`, `mistral`, `qwen2` and `qwen3` (use a checkpoint of one of these families)",
        ),
        (
            "llama2",
            r#""logits_scaling": 8.0"#,
            "`logits_scaling` is `8.0`, which is no setting that is known of a `llama` model (remove it if it changes nothing of what the model computes; docs/models.md lists what is known)",
        ),
        ("llama2", r#""sliding_window": 8"#, "`sliding_window` is `8`, which is no setting"),
        (
            "qwen3",
            r#""mlp_bias": true"#,
            "`mlp_bias` is `true`, but in a `qwen3` model it is always `false` (remove it, or use the family that the weights are of)",
        ),
        (
            "qwen2-yarn",
            r#""attention_bias": false"#,
            "`attention_bias` is `false`, but in a `qwen2` model it is always `true`",
        ),
        (
            "mistral",
            r#""attention_dropout": 0.1"#,
            "`attention_dropout` is `0.1`, but dropout is not supported (only `0` is; use another checkpoint)",
        ),
        ("mistral", r#""partial_rotary_factor": 0.5"#, "`partial_rotary_factor` is `0.5`"),
        (
            "mistral",
            r#""sliding_window": 63"#,
            "`sliding_window` is 63, less than `max_position_embeddings` 64: sliding-window attention is not supported",
        ),
        (
            "qwen3",
            r#""architectures": ["Qwen3ForSequenceClassification"]"#,
            "`architectures` is `[\"Qwen3ForSequenceClassification\"]`, only `Qwen3ForCausalLM` is supported",
        ),
        ("qwen3", r#""layer_types": ["full_attention", "chunked_attention"]"#, "`layer_types` has `chunked_attention`"),
        ("qwen3", r#""rope_theta": 0.5"#, "`rope_theta` is 0.5, expected at least 1"),
        ("qwen3", r#""rope_theta": "x""#, "`rope_theta` is `x`, expected a number above 0"),
        ("qwen3", r#""rope_scaling": "linear""#, "`rope_scaling` is `linear`, expected an object"),
        (
            "qwen3",
            r#""rope_scaling": {"type": "dynamic", "factor": 2.0}"#,
            "`rope_type` of `rope_scaling` is `dynamic`, supported are `default`, `linear`, `llama3` and `yarn` (use a checkpoint with one of these)",
        ),
        ("qwen3", r#""rope_scaling": {"type": "linear"}"#, "`rope_scaling` of type `linear` has no `factor`"),
        ("qwen3", r#""rope_scaling": {"type": "linear", "factor": 0.5}"#, "`factor` is 0.5, expected at least 1"),
        (
            "qwen3",
            r#""rope_scaling": {"type": "linear", "rope_type": "yarn"}"#,
            "`rope_type` and `type` of `rope_scaling` differ",
        ),
        (
            "qwen3",
            r#""rope_scaling": {"type": "linear", "factor": 2.0, "long_factor": [1.0]}"#,
            "`long_factor` of `rope_scaling` is `[1.0]`, which is no setting that is known of `linear`",
        ),
        (
            "qwen3",
            r#""rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 0.5}"#,
            "`beta_fast` of `rope_scaling` is 0.5, expected at least `beta_slow` 1",
        ),
        (
            "qwen3",
            r#""rope_scaling": {"type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5}"#,
            "`partial_rotary_factor` of `rope_scaling` is 0.5",
        ),
        (
            "llama3",
            r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}"#,
            "`high_freq_factor` of `rope_scaling` is 4, expected more than `low_freq_factor` 4",
        ),
        (
            "llama-biased",
            r#""rope_scaling": {"type": "linear", "factor": 2.0}"#,
            "`rope_scaling` and `rope_parameters` differ",
        ),
        (
            "llama-biased",
            r#""rope_parameters": {"full_attention": {"rope_type": "default"}}"#,
            "`full_attention` of `rope_parameters` is",
        ),
        ("qwen3", r#""use_sliding_window": true"#, "sliding-window attention is not supported"),
        ("qwen3", r#""quantization_config": {}"#, "`quantization_config` is set"),
        ("qwen3", r#""use_mrope": true"#, "`use_mrope` is `true`"),
        ("qwen3", r#""hidden_act": "gelu""#, "`hidden_act` is `gelu`, only `silu` is supported"),
        (
            "qwen3",
            r#""num_key_value_heads": 3"#,
            "`num_attention_heads` 2 is not a multiple of `num_key_value_heads` 3",
        ),
        ("qwen3", r#""num_hidden_layers": 0"#, "`num_hidden_layers` is 0"),
        ("qwen3", r#""vocab_size": "many""#, "invalid type"),
        (
            "mistral",
            r#""sliding_window": null, "max_position_embeddings": 8192"#,
            "`sliding_window` is 4096, less than `max_position_embeddings` 8192",
        ),
    ];
    for (name, changes, expected) in cases {
        let error = format!("{:#}", changed(name, changes).expect_err(changes));
        println!("{error}");
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn settings_that_change_nothing_are_kept() {
    for (name, changes) in [
        ("llama3", r#""pretraining_tp": 2, "rope_interleaved": false, "attention_dropout": 0"#),
        ("llama3", r#""torch_dtype": "bfloat16", "id2label": {"0": "a"}"#),
        ("mistral", r#""sliding_window": 64"#),
        ("qwen2-yarn", r#""attention_bias": true, "use_mrope": false"#),
        ("llama-biased", r#""rope_theta": 7.0"#),
    ] {
        changed(name, changes).unwrap();
    }
    // A key that says nothing, which `changed` would remove.
    let null = fs::read_to_string(folder("llama3").join("config.json")).unwrap();
    Config::from_json(null.replacen('{', r#"{"sliding_window": null,"#, 1).as_bytes()).unwrap();
}

/// `config.json` as published, and how many weights the model is known to have.
const PUBLISHED: [(&str, usize); 7] = [
    // Qwen/Qwen2.5-0.5B
    (
        r#"{"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu","hidden_size":896,
        "initializer_range":0.02,"intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":24,"model_type":"qwen2","num_attention_heads":14,
        "num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,
        "torch_dtype":"bfloat16","transformers_version":"4.40.1","use_cache":true,"use_mrope":false,"use_sliding_window":false,"vocab_size":151936}"#,
        494_032_768,
    ),
    // Qwen/Qwen3-0.6B
    (
        r#"{"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151645,"head_dim":128,
        "hidden_act":"silu","hidden_size":1024,"initializer_range":0.02,"intermediate_size":3072,"max_position_embeddings":40960,"max_window_layers":28,
        "model_type":"qwen3","num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,"rope_scaling":null,
        "rope_theta":1000000,"sliding_window":null,"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,
        "use_sliding_window":false,"vocab_size":151936}"#,
        596_049_920,
    ),
    // meta-llama/Llama-3.2-1B
    (
        r#"{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":128001,"head_dim":64,
        "hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,
        "model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,"pretraining_tp":1,"rms_norm_eps":1e-05,
        "rope_scaling":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
        "rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.45.0.dev0","use_cache":true,"vocab_size":128256}"#,
        1_235_814_400,
    ),
    // meta-llama/Llama-2-7b-hf
    (
        r#"{"_name_or_path":"meta-llama/Llama-2-7b-hf","architectures":["LlamaForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu",
        "hidden_size":4096,"initializer_range":0.02,"intermediate_size":11008,"max_position_embeddings":4096,"model_type":"llama","num_attention_heads":32,
        "num_hidden_layers":32,"num_key_value_heads":32,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,"tie_word_embeddings":false,
        "torch_dtype":"float16","transformers_version":"4.31.0.dev0","use_cache":true,"vocab_size":32000}"#,
        6_738_415_616,
    ),
    // HuggingFaceTB/SmolLM2-135M
    (
        r#"{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":0,"eos_token_id":0,"hidden_act":"silu",
        "hidden_size":576,"initializer_range":0.041666666666666664,"intermediate_size":1536,"is_llama_config":true,"max_position_embeddings":8192,
        "model_type":"llama","num_attention_heads":9,"num_hidden_layers":30,"num_key_value_heads":3,"pretraining_tp":1,"rms_norm_eps":1e-05,
        "rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
        "transformers_version":"4.40.1","use_cache":true,"vocab_size":49152}"#,
        134_515_008,
    ),
    // TinyLlama/TinyLlama-1.1B-Chat-v1.0
    (
        r#"{"architectures":["LlamaForCausalLM"],"attention_bias":false,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":2048,
        "initializer_range":0.02,"intermediate_size":5632,"max_position_embeddings":2048,"model_type":"llama","num_attention_heads":32,
        "num_hidden_layers":22,"num_key_value_heads":4,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,
        "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.35.0","use_cache":true,"vocab_size":32000}"#,
        1_100_048_384,
    ),
    // mistralai/Mistral-7B-v0.3
    (
        r#"{"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu","hidden_size":4096,
        "initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,
        "num_hidden_layers":32,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,"tie_word_embeddings":false,
        "torch_dtype":"bfloat16","transformers_version":"4.42.0.dev0","use_cache":true,"vocab_size":32768}"#,
        7_248_023_552,
    ),
];

#[test]
fn published_models_have_as_many_weights_as_they_say() {
    for (json, count) in PUBLISHED {
        let config = Config::from_json(json.as_bytes()).unwrap();
        let sizes = shapes(&config).into_values().map(|shape| shape.iter().product::<usize>());
        assert_eq!(sizes.sum::<usize>(), count, "{json}");
    }
}
