//! Tests of the whole model in bf16, and without the fused CPU kernels, as on other devices.

use candle_core::{DType, Device, Tensor};
use host_rng::{fill_standard_normal, stream};

use super::ops::testing::{distance, generic};
use super::*;
use crate::optim::adamw::AdamWConfig;
use crate::optim::sgd::SgdConfig;
use crate::optim::{Optimizer, OptimizerConfig, global_norm};

const TEMPERATURE: f64 = 0.8;

/// A random model whose norm weights and biases are random too. Small weights reduce the influence
/// of rounding.
fn policy(tied: bool) -> Policy {
    random(tied, 0.3)
}

fn random(tied: bool, scale: f64) -> Policy {
    of_family(
        &format!(r#""model_type": "qwen2", "tie_word_embeddings": {tied}"#),
        scale,
    )
}

/// Settings that a Qwen2 model never has.
const SWITCHES: [&str; 2] = [
    r#""model_type": "qwen3", "head_dim": 8, "attention_bias": true"#,
    r#""model_type": "llama", "mlp_bias": true, "rope_scaling": {"type": "yarn", "factor": 4.0}"#,
];

fn of_family(family: &str, scale: f64) -> Policy {
    let json = format!(
        r#"{{{family}, "vocab_size": 300, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "initializer_range": {scale}}}"#
    );
    let mut rng = stream(7, "test", &[]);
    let mut fill = |out: &mut [f32]| fill_standard_normal(&mut rng, out);
    let policy = Policy::init(
        Config::from_json(json.as_bytes()).unwrap(),
        &Device::Cpu,
        &mut fill,
    )
    .unwrap();
    for (_, var) in policy.params().iter().filter(|(_, var)| var.rank() == 1) {
        let mut noise = vec![0.0; var.elem_count()];
        fill(&mut noise);
        let noise = Tensor::from_vec(noise, var.shape(), &Device::Cpu).unwrap();
        var.set(&(var.as_detached_tensor() + (noise * 0.2).unwrap()).unwrap())
            .unwrap();
    }
    policy
}

/// Policies with and without a head of their own, and those of `SWITCHES`.
fn policies(scale: f64) -> impl Iterator<Item = Policy> {
    let switched = SWITCHES.map(|family| of_family(family, scale));
    [false, true]
        .map(|tied| random(tied, scale))
        .into_iter()
        .chain(switched)
}

fn rows() -> Sequences {
    let ids = (0..3 * 9).map(|i| (i * 37 + i / 4) % 300).collect();
    Sequences {
        ids,
        starts: vec![0, 3, 1],
        prompt_len: 4,
        completion_len: 5,
        lengths: vec![5; 3],
        numbers: Sequences::numbered(3),
    }
}

fn d_logps() -> Vec<f32> {
    (0..15)
        .map(|i| {
            if i % 6 == 4 {
                0.0
            } else {
                (i as f32 * 0.9).sin()
            }
        })
        .collect()
}

fn named(gradients: &Gradients) -> Vec<(String, Tensor)> {
    gradients
        .iter()
        .map(|(name, tensor)| (name.to_owned(), tensor.clone()))
        .collect()
}

/// Outputs and gradients as named tensors; `topk_ids` are converted to floats.
fn pass(policy: &Policy) -> Vec<(String, Tensor)> {
    let forward = policy.forward(&rows(), TEMPERATURE).unwrap();
    let outputs = forward
        .outputs(&Wants {
            entropy: true,
            last_layer_k: Some(7),
            ..Wants::default()
        })
        .unwrap();
    let data = outputs.last_layer.unwrap().to_host().unwrap().into_owned();
    let ids = data.topk_ids.iter().map(|id| *id as f32).collect();
    let columns = [
        ("logps", outputs.logps),
        ("entropy", outputs.entropy.unwrap()),
        ("hidden", data.hidden),
        ("topk_ids", ids),
        ("topk_logits", data.topk_logits),
        ("logsumexp", data.logsumexp),
        ("action_logits", data.action_logits),
    ];
    let columns = columns.map(|(name, values)| {
        let len = values.len();
        (
            name.to_owned(),
            Tensor::from_vec(values, len, &Device::Cpu).unwrap(),
        )
    });
    columns
        .into_iter()
        .chain(named(&forward.backward(&d_logps()).unwrap()))
        .collect()
}

fn compare(actual: &[(String, Tensor)], expected: &[(String, Tensor)], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for ((name, actual), (_, expected)) in actual.iter().zip(expected) {
        let distance = distance(actual, expected);
        println!("{name}: {distance:.1e}");
        assert!(distance < tolerance, "`{name}` differs by {distance:e}");
    }
}

#[test]
fn outputs_and_gradients_are_the_same_without_fused_kernels() {
    for policy in policies(0.3) {
        compare(&generic(|| pass(&policy)), &pass(&policy), 2e-5);
    }
}

#[test]
fn outputs_and_gradients_in_bf16_are_near_those_in_f32() {
    for (policy, same) in policies(0.1).zip(policies(0.1)) {
        let expected = pass(&policy);
        let actual = pass(&same.with_dtype(DType::BF16));
        let without_ids = |pass: Vec<(String, Tensor)>| {
            pass.into_iter()
                .filter(|(name, _)| name != "topk_ids")
                .collect::<Vec<_>>()
        };
        compare(&without_ids(actual), &without_ids(expected), 0.05);
    }
}

#[test]
fn micro_batches_in_bf16_add_up_in_f32() {
    let policy = policy(false).with_dtype(DType::BF16);
    let first = || {
        policy
            .forward(&rows().slice(0..1), TEMPERATURE)
            .unwrap()
            .backward(&d_logps()[..5])
            .unwrap()
    };
    let (mut sum, one) = (first(), first());
    assert!(
        sum.iter()
            .any(|(_, gradient)| gradient.dtype() == DType::BF16)
    );
    sum.accumulate(first()).unwrap();
    for (name, sum) in sum.iter() {
        let twice = (one.get(name).unwrap().to_dtype(DType::F32).unwrap() * 2.0).unwrap();
        assert_eq!(
            (sum.dtype(), distance(sum, &twice)),
            (DType::F32, 0.0),
            "{name}"
        );
    }
}

#[test]
fn joins_parts_of_the_last_layer_on_host_and_device() {
    let policy = policy(false);
    let last_layer = |range: std::ops::Range<usize>| {
        let forward = policy
            .forward_detached(&rows().slice(range), TEMPERATURE)
            .unwrap();
        forward
            .outputs(&Wants {
                last_layer_k: Some(7),
                ..Wants::default()
            })
            .unwrap()
            .last_layer
            .unwrap()
    };
    // Tensors marked as on another device, although they are on the CPU.
    let elsewhere = |data: LastLayerOutputs| {
        let LastLayerOutputs::Host(data) = data else {
            panic!("the policy is on the CPU")
        };
        let count = data.logsumexp.len();
        let floats = |values: Vec<f32>, shape: &[usize]| {
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        LastLayerOutputs::Device(LastLayerTensors {
            hidden: floats(data.hidden, &[count, data.width]),
            topk_ids: Tensor::from_vec(data.topk_ids, (count, data.k), &Device::Cpu).unwrap(),
            topk_logits: floats(data.topk_logits, &[count, data.k]),
            logsumexp: floats(data.logsumexp, &[count]),
            action_logits: floats(data.action_logits, &[count]),
            vocab_size: data.vocab_size,
        })
    };
    let parts = || vec![last_layer(0..1), last_layer(1..3)];
    let host = LastLayerOutputs::join(parts()).unwrap();
    let device = LastLayerOutputs::join(parts().into_iter().map(elsewhere).collect()).unwrap();
    assert!(matches!(device, LastLayerOutputs::Device(_)));
    assert_eq!(device.extents(), host.extents());
    assert_eq!(device.to_host().unwrap(), host.to_host().unwrap());
    assert_eq!(host.to_host().unwrap().logsumexp.len(), 15);
    assert!(LastLayerOutputs::join(vec![host, device]).is_err());
}

fn generate(policy: &Policy, sampling: SamplingParams, logps: bool) -> Vec<SampledTokens> {
    let prompts = vec![
        vec![5, 9, 2, 14],
        vec![3],
        vec![5, 9, 2, 14],
        vec![28, 7, 11],
        vec![4, 4, 4, 4, 4, 4],
    ];
    let generation = Generation {
        sampling,
        max_completion_length: 12,
        max_turn_length: 0,
        eos_ids: (0..30).collect(),
        logps,
        sampler_logps: true,
        top_k: 40,
        max_num_seqs: 0,
    };
    let mut rngs: Vec<_> = (0..prompts.len() as u64)
        .map(|row| stream(11, "sample", &[row]))
        .collect();
    policy.generate(&prompts, &generation, &mut rngs).unwrap()
}

#[test]
fn completions_are_the_same_without_fused_kernels() {
    let policy = policy(true);
    let mut truncated = [false; 2];
    for (temperature, top_k, top_p) in [
        (0.0, 0, 1.0),
        (0.9, 0, 1.0),
        (0.9, 20, 1.0),
        (0.9, 20, 0.8),
        (0.9, 0, 0.8),
    ] {
        let sampling = SamplingParams {
            temperature,
            top_k,
            top_p,
        };
        let (expected, actual) = (
            generate(&policy, sampling, true),
            generic(|| generate(&policy, sampling, true)),
        );
        expected
            .iter()
            .for_each(|completion| truncated[usize::from(completion.truncated)] = true);
        for (actual, expected) in actual.iter().zip(&expected) {
            assert_eq!(actual.ids, expected.ids);
            assert!(
                actual
                    .logps
                    .iter()
                    .zip(&expected.logps)
                    .all(|(a, b)| (a - b).abs() < 1e-4)
            );
        }
        // Unless log-probabilities before truncation are asked for, tokens are drawn on the logits'
        // device.
        let drawn_there = generic(|| generate(&policy, sampling, false));
        assert!(
            drawn_there
                .iter()
                .zip(&expected)
                .all(|(a, b)| a.ids == b.ids && a.truncated == b.truncated)
        );
        for (actual, expected) in drawn_there.iter().zip(&expected) {
            assert_eq!(actual.sampler_logps.len(), expected.ids.len());
            assert!(
                actual
                    .sampler_logps
                    .iter()
                    .zip(&expected.sampler_logps)
                    .all(|(a, b)| (a - b).abs() < 1e-4)
            );
            assert_eq!(
                (actual.top_ids.len(), &actual.top_ids),
                (expected.ids.len() * 40, &expected.top_ids)
            );
            assert!(
                actual
                    .top_logps
                    .iter()
                    .zip(&expected.top_logps)
                    .all(|(a, b)| a == b || (a - b).abs() < 1e-4)
            );
        }
    }
    assert_eq!(
        truncated, [true; 2],
        "some completions end by themselves and some at the limit"
    );
}

#[test]
fn recomputes_the_log_probabilities_of_completions_in_bf16() {
    let policy = policy(true).with_dtype(DType::BF16);
    for completion in generate(
        &policy,
        SamplingParams {
            temperature: TEMPERATURE,
            top_k: 0,
            top_p: 1.0,
        },
        true,
    )
    .iter()
    .skip(4)
    {
        let ids = [&[4; 6], completion.ids.as_slice()].concat();
        let (starts, numbers, completion_len) =
            (vec![0], Sequences::numbered(1), completion.ids.len());
        let lengths = vec![completion_len];
        let rows = Sequences {
            ids,
            starts,
            prompt_len: 6,
            completion_len,
            lengths,
            numbers,
        };
        let outputs = policy
            .forward_detached(&rows, TEMPERATURE)
            .unwrap()
            .outputs(&Wants::default())
            .unwrap();
        for (drawn, passed) in completion.logps.iter().zip(&outputs.logps) {
            assert!((drawn - passed).abs() < 0.2, "{drawn} {passed}");
        }
    }
}

#[test]
fn checkpointing_changes_no_bit() {
    for dtype in [DType::F32, DType::BF16] {
        let of = |policy: Policy, by: &[f32]| {
            named(
                &policy
                    .forward(&rows(), TEMPERATURE)
                    .unwrap()
                    .backward_of_nonzero(by)
                    .unwrap()
                    .unwrap(),
            )
        };
        let mut some = d_logps();
        some[5..10].fill(0.0);
        // Recomputation for some of the rows has matrix products of other sizes, which round
        // differently.
        let rounding = if dtype == DType::F32 { 1e-5 } else { 0.02 };
        for (by, tolerance) in [(d_logps(), f64::MIN_POSITIVE), (some, rounding)] {
            let stored = of(policy(true).with_dtype(dtype), &by);
            compare(
                &of(
                    policy(true)
                        .with_dtype(dtype)
                        .with_gradient_checkpointing(true),
                    &by,
                ),
                &stored,
                tolerance,
            );
        }
    }
}

/// Gradients of some rows: from a backward pass over these rows alone, and over all rows.
fn of_some_rows(dtype: DType) -> [Vec<(String, Tensor)>; 2] {
    let policy = policy(true).with_dtype(dtype);
    let forward = policy.forward(&rows(), TEMPERATURE).unwrap();
    let tokens = forward.dims().1;
    let mut d_logps = d_logps();
    d_logps[tokens..2 * tokens].fill(0.0);
    let some = forward
        .backward_of_nonzero(&d_logps)
        .unwrap()
        .expect("some rows are not 0");
    assert!(
        forward
            .backward_of_nonzero(&vec![0.0; d_logps.len()])
            .unwrap()
            .is_none()
    );
    [named(&some), named(&forward.backward(&d_logps).unwrap())]
}

#[test]
fn leaves_rows_of_zeros_out_of_the_backward_pass() {
    let [some, all] = of_some_rows(DType::F32);
    compare(&some, &all, 1e-5);
    let [some, all] = generic(|| of_some_rows(DType::F32));
    compare(&some, &all, 1e-5);
    let [some, all] = of_some_rows(DType::BF16);
    compare(&some, &all, 0.02);
}

/// Weights and moments after three steps.
fn optimize(config: OptimizerConfig, dtype: DType) -> Vec<(String, Tensor)> {
    let policy = policy(false).with_dtype(dtype);
    let mut optimizer = Optimizer::new(policy.params(), config).unwrap();
    for step in 0..3 {
        let forward = policy.forward(&rows(), TEMPERATURE).unwrap();
        let gradients = forward.backward(&d_logps()).unwrap();
        let mut other = d_logps();
        other.rotate_left(3);
        // Only Adam uses gradients of rejected tokens, and not every step has rejected tokens.
        let rejected = matches!(config, OptimizerConfig::AdamW(_)) && step > 0;
        let rejected = rejected.then(|| forward.backward(&other).unwrap());
        let norm = global_norm(&gradients).unwrap();
        let outcome = optimizer
            .step(
                policy.params(),
                &gradients,
                rejected.as_ref(),
                1e-2,
                0.5 * norm,
            )
            .unwrap();
        assert!(outcome.taken);
    }
    let weights = policy
        .params()
        .iter()
        .map(|(name, var)| (name.to_owned(), var.as_detached_tensor()));
    weights.chain(optimizer.state().unwrap()).collect()
}

#[test]
fn optimizers_step_the_same_without_fused_kernels() {
    for config in [
        OptimizerConfig::AdamW(AdamWConfig {
            weight_decay: 0.1,
            ..AdamWConfig::default()
        }),
        OptimizerConfig::Sgd(SgdConfig {
            momentum: 0.9,
            weight_decay: 0.1,
            ..SgdConfig::default()
        }),
        OptimizerConfig::Sgd(SgdConfig::default()),
    ] {
        let expected = optimize(config, DType::F32);
        compare(&generic(|| optimize(config, DType::F32)), &expected, 1e-4);
        let in_bf16 = optimize(config, DType::BF16);
        assert!(
            in_bf16
                .iter()
                .all(|(name, tensor)| name == "steps_taken" || tensor.dtype() == DType::F32)
        );
    }
}

#[test]
fn estimates_the_bytes_of_activations() {
    let long = Sequences {
        ids: vec![1; 2 * 300],
        starts: vec![0, 3],
        prompt_len: 4,
        completion_len: 296,
        lengths: vec![296; 2],
        numbers: Sequences::numbered(2),
    };
    for family in [r#""model_type": "qwen2""#, SWITCHES[0], SWITCHES[1]] {
        for (dtype, checkpointing) in [
            (DType::F32, false),
            (DType::F32, true),
            (DType::BF16, false),
        ] {
            let policy = of_family(family, 0.3)
                .with_dtype(dtype)
                .with_gradient_checkpointing(checkpointing);
            for rows in [rows(), long.clone()] {
                let found = policy.forward(&rows, TEMPERATURE).unwrap().bytes();
                assert_eq!(
                    policy.activation_bytes(&rows),
                    found as u128,
                    "{family}, {dtype:?}, {checkpointing}"
                );
            }
        }
    }
}

#[test]
fn counts_memory_for_gradients_of_rejected_tokens() {
    let (policy, shape) = (
        policy(true),
        Shape {
            rows: 3,
            prompts: 3,
            prompt: 4,
            tokens: 5,
        },
    );
    let gradients = |several, rejected| policy.training_bytes(shape, several, rejected)[0].1;
    let one = 4 * policy.params().element_count() as u128;
    let parts = policy.split(3, 32).len() as u128;
    assert!(parts > 1, "a small model's rows are split");
    assert_eq!(gradients(false, false), parts * one);
    assert_eq!(gradients(true, false), (parts + 1) * one);
    assert_eq!(gradients(false, true), (parts + 1) * one);
}
