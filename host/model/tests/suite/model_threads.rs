//! The bits of logits, gradients, completions and updated weights do not depend on the number of
//! threads.

use std::process::Command;

use candle_core::{DType, Tensor};
use host_model::optim::adamw::AdamWConfig;
use host_model::optim::{Optimizer, OptimizerConfig};
use host_model::{Generation, Sequences, Wants};
use host_rng::stream;

use crate::shared::{random, sampling, values};

/// FNV-1a over the bits of all numbers.
struct Digest(u64);

impl Digest {
    fn add(&mut self, values: impl IntoIterator<Item = u32>) {
        for byte in values.into_iter().flat_map(u32::to_le_bytes) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn floats(&mut self, values: &[f32]) {
        self.add(values.iter().map(|value| value.to_bits()));
    }

    fn tensor(&mut self, tensor: &Tensor) {
        self.floats(&values(tensor));
    }
}

/// One training step of a model that is large enough for matrix products to use several threads.
#[test]
#[ignore = "run by `the_number_of_threads_changes_no_bit` in processes of their own"]
fn child() {
    let json = r#"{"model_type": "qwen2", "vocab_size": 211, "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "initializer_range": 0.1}"#;
    let policy = random(json, 5);
    let (rows, prompt_len, completion_len) = (24, 17, 50);
    let id = |row: usize, i: usize| {
        // Four rows have the same prompt.
        let i = if i < prompt_len {
            row / 4 * prompt_len + i
        } else {
            row * completion_len + i
        };
        (i * i + i / 3) as u32 % 211
    };
    let ids = (0..rows)
        .flat_map(|row| (0..prompt_len + completion_len).map(move |i| id(row, i)))
        .collect();
    let starts = (0..rows).map(|row| row / 4 % prompt_len).collect();
    let lengths = (0..rows).map(|row| 1 + row * 13 % completion_len).collect();
    let numbers = Sequences::numbered(rows);
    let batch = Sequences {
        ids,
        starts,
        prompt_len,
        completion_len,
        lengths,
        numbers,
    };

    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    let forward = policy.forward(&batch, 0.9).unwrap();
    let outputs = forward
        .outputs(&Wants {
            entropy: true,
            last_layer_k: Some(20),
            ..Wants::default()
        })
        .unwrap();
    digest.floats(&outputs.logps);
    digest.floats(&outputs.entropy.unwrap());
    digest.floats(&outputs.last_layer.unwrap().to_host().unwrap().hidden);
    let d_logps: Vec<f32> = (0..rows * completion_len)
        .map(|i| (i as f32 * 0.37).sin())
        .collect();
    let gradients = forward.backward(&d_logps).unwrap();
    gradients
        .iter()
        .for_each(|(_, gradient)| digest.tensor(gradient));
    let mut optimizer = Optimizer::new(
        policy.params(),
        OptimizerConfig::AdamW(AdamWConfig::default()),
    )
    .unwrap();
    let outcome = optimizer
        .step(policy.params(), &gradients, None, 1e-3, 1.0)
        .unwrap();
    digest.add([
        outcome.grad_norm.to_bits() as u32,
        (outcome.grad_norm.to_bits() >> 32) as u32,
    ]);
    policy
        .params()
        .iter()
        .for_each(|(_, var)| digest.tensor(&var.as_detached_tensor()));

    let generation = Generation {
        max_completion_length: 40,
        eos_ids: vec![3, 4, 5],
        ..sampling(1.0, 50, 0.95)
    };
    let prompts: Vec<Vec<u32>> = (0..48)
        .map(|row| (0..1 + row % 9).map(|i| row + i).collect())
        .collect();
    for dtype in [DType::F32, DType::BF16] {
        let mut rngs: Vec<_> = (0..48).map(|row| stream(5, "sample", &[row])).collect();
        for completion in policy
            .share()
            .with_dtype(dtype)
            .generate(&prompts, &generation, &mut rngs)
            .unwrap()
        {
            digest.floats(&completion.logps);
            digest.add(completion.ids);
        }
    }
    println!("digest {:016x}", digest.0);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let digest = |threads: &str| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "model_threads::child",
                "--ignored",
                "--nocapture",
            ])
            .envs([
                ("RAYON_NUM_THREADS", threads),
                ("CANDLE_NUM_THREADS", threads),
            ])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text
            .lines()
            .find(|line| line.contains("digest "))
            .unwrap_or_else(|| panic!("{text}"));
        line[line.find("digest ").unwrap()..].to_owned()
    };
    let one = digest("1");
    println!("{one}");
    for threads in ["2", "3", "8"] {
        assert_eq!(digest(threads), one, "{threads} threads");
    }
}
