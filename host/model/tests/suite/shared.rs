//! Helpers that several test files share: models and numbers in `tests/data`, and comparisons of
//! tensors.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use host_model::{
    Config, Forward, Generation, Gradients, ModelFiles, Policy, SamplingParams, Sequences,
    head_name,
};
use host_rng::{fill_standard_normal, stream};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tempfile::TempDir;

/// A path in `tests/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}

/// The value in a JSON file.
pub fn json<T: DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub fn load(directory: &Path) -> anyhow::Result<Policy> {
    Policy::load(&ModelFiles::Directory(directory.to_owned()), &Device::Cpu)
}

/// A copy of the checkpoint `source` with changed values in its configuration. A test may break
/// it.
pub fn changed_copy(source: &Path, changes: &Value) -> TempDir {
    let copy = TempDir::new().unwrap();
    fs::copy(
        source.join("model.safetensors"),
        copy.path().join("model.safetensors"),
    )
    .unwrap();
    let mut config: Map<String, Value> = json(&source.join("config.json"));
    config.extend(changes.as_object().unwrap().clone());
    fs::write(
        copy.path().join("config.json"),
        serde_json::to_vec(&config).unwrap(),
    )
    .unwrap();
    copy
}

/// A model of `qwen2-golden`.
pub fn qwen2(name: &str) -> Policy {
    load(&data("qwen2-golden").join(name)).unwrap()
}

/// The numbers of `qwen2-golden`.
pub fn qwen2_numbers() -> Value {
    json(&data("qwen2-golden/golden.json"))
}

/// The numbers of a model in another folder.
pub fn tensors(folder: &str, name: &str) -> HashMap<String, Tensor> {
    let path = data(folder).join(name).join("golden.safetensors");
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// A model with random weights.
pub fn random(json: &str, seed: u64) -> Policy {
    let mut rng = stream(seed, "test", &[]);
    let config = Config::from_json(json.as_bytes()).unwrap();
    Policy::init(config, &Device::Cpu, &mut |out: &mut [f32]| {
        fill_standard_normal(&mut rng, out)
    })
    .unwrap()
}

/// The two rows of `families-golden` and `lora-golden`. The first `prompt_len` tokens are the
/// prompt.
pub fn rows(prompt_len: usize) -> Sequences {
    let ids = [
        [0, 0, 0, 7, 21, 16, 3, 12, 20, 5, 11],
        [0, 11, 2, 23, 17, 19, 19, 8, 1, 15, 6],
    ]
    .concat();
    let (completion_len, numbers) = (11 - prompt_len, Sequences::numbered(2));
    Sequences {
        ids,
        starts: vec![3, 1],
        prompt_len,
        completion_len,
        lengths: vec![completion_len; 2],
        numbers,
    }
}

/// Prompts with their completions. Prompts are padded with 0 on the left, completions on the right.
pub fn batch(rows: &[(&[u32], &[u32])]) -> Sequences {
    let prompt_len = rows.iter().map(|(prompt, _)| prompt.len()).max().unwrap();
    let completion_len = rows
        .iter()
        .map(|(_, completion)| completion.len())
        .max()
        .unwrap();
    let numbers = Sequences::numbered(rows.len());
    let lengths = rows
        .iter()
        .map(|(_, completion)| completion.len())
        .collect();
    let mut batch = Sequences {
        ids: Vec::new(),
        starts: Vec::new(),
        prompt_len,
        completion_len,
        lengths,
        numbers,
    };
    for (number, (prompt, completion)) in rows.iter().enumerate() {
        let start = prompt_len - prompt.len();
        batch.starts.push(start);
        batch.ids.extend(std::iter::repeat_n(0, start));
        batch.ids.extend(prompt.iter().chain(*completion));
        batch
            .ids
            .resize((number + 1) * (prompt_len + completion_len), 0);
    }
    batch
}

/// The derivatives of a loss by the log-probabilities of `rows(6)`, as in the golden numbers.
pub fn d_logps() -> Vec<f32> {
    (0..10)
        .map(|i| (1.0 + 2.0 * (i / 5) as f64 + 0.7 * (i % 5) as f64).sin() as f32)
        .collect()
}

/// Logits of all tokens of these rows from the fourth on, `[2, 7, V]`. The token before each of
/// them is not padding.
pub fn logits_of_rows(policy: &Policy) -> Tensor {
    logits(policy, &policy.forward_detached(&rows(4), 1.0).unwrap())
        .reshape((2, 7, ()))
        .unwrap()
}

/// Asserts that the gradients equal those in `golden`, which are under the names of the weights.
pub fn assert_golden(name: &str, gradients: &Gradients, golden: &HashMap<String, Tensor>) {
    let mut worst = 0.0f32;
    for (weight, gradient) in gradients.iter() {
        let distance = distance(gradient, &golden[weight]);
        worst = worst.max(distance);
        assert!(distance < 1e-4, "{name}: {weight}: {distance:e}");
    }
    println!("{name}: gradients {worst:.1e}");
}

/// Settings to sample 12 tokens, without an end token.
pub fn sampling(temperature: f64, top_k: usize, top_p: f64) -> Generation {
    Generation {
        sampling: SamplingParams {
            temperature,
            top_k,
            top_p,
        },
        max_completion_length: 12,
        max_turn_length: 0,
        eos_ids: vec![],
        logps: true,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: 0,
    }
}

/// The logits of a forward pass, `[tokens, V]`.
pub fn logits(policy: &Policy, forward: &Forward) -> Tensor {
    let head = policy
        .weights()
        .get(head_name(policy.config()))
        .unwrap()
        .as_detached_tensor();
    forward
        .hidden()
        .unwrap()
        .matmul(&head.t().unwrap())
        .unwrap()
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The bits of every weight.
pub fn bits(policy: &Policy) -> Vec<(String, Vec<u32>)> {
    let bits = |tensor: &Tensor| values(tensor).iter().map(|value| value.to_bits()).collect();
    policy
        .params()
        .iter()
        .map(|(name, var)| (name.to_owned(), bits(var.as_tensor())))
        .collect()
}

/// The largest difference of two arrays, relative to the largest number.
pub fn distance(actual: &Tensor, expected: &Tensor) -> f32 {
    assert_eq!(actual.dims(), expected.dims());
    let (actual, expected) = (values(actual), values(expected));
    let largest = expected
        .iter()
        .fold(0.0f32, |largest, value| largest.max(value.abs()));
    actual
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
        / largest
}

/// The larger of two differences from the numbers of `make.py` for a tensor: that of the norm, and
/// that of the product with a wave, both relative to the norm.
pub fn wave_difference(tensor: &Tensor, expected: &Value) -> f64 {
    let values = values(tensor);
    let norm = values
        .iter()
        .map(|v| f64::from(*v).powi(2))
        .sum::<f64>()
        .sqrt();
    let dot: f64 = values
        .iter()
        .enumerate()
        .map(|(i, v)| f64::from(*v) * (0.37 * i as f64).cos())
        .sum();
    let (norm_, dot_) = (
        expected["norm"].as_f64().unwrap(),
        expected["dot"].as_f64().unwrap(),
    );
    (norm - norm_).abs().max((dot - dot_).abs()) / norm_
}
