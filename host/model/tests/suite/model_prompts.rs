//! Rows that share a prompt have the same outputs and gradients as each row alone: in every family,
//! with an adapter, with gradient checkpointing, in micro-batches that cut a group, and without the
//! fused kernels of the CPU.

use candle_core::{DType, Device, Tensor};
use host_model::{
    Base, Dropout, Gradients, LoraConfig, ModelFiles, Policy, Sequences, Targets, Wants,
};
use host_ops::testing::generic;
use serde_json::Map;

use crate::shared::{batch, data, distance, load};

const NAMES: [&str; 7] = [
    "llama2",
    "llama3",
    "llama-biased",
    "mistral",
    "qwen2-yarn",
    "qwen3",
    "qwen3-biased",
];

/// Groups of three, two and one rows with the same prompt, in mixed order, and completions of one
/// to six tokens.
fn rows() -> Sequences {
    batch(&[
        (&[3, 9, 1, 7], &[5, 2, 8, 8, 1, 4]),
        (&[6, 4], &[2, 7]),
        (&[3, 9, 1, 7], &[5]),
        (&[9], &[1, 12, 3]),
        (&[3, 9, 1, 7], &[11, 2, 8]),
        (&[6, 4], &[3, 3, 10, 6, 1]),
    ])
}

/// Derivatives of a loss by the log-probabilities; 0 on padding.
fn d_logps(rows: &Sequences) -> Vec<f32> {
    let own = |i: usize| i % rows.completion_len < rows.lengths[i / rows.completion_len];
    (0..rows.rows() * rows.completion_len)
        .map(|i| if own(i) { (0.8 * i as f32).sin() } else { 0.0 })
        .collect()
}

/// Log-probabilities, entropies, features and gradients from passes over `at_once` rows at a time.
fn pass(policy: &Policy, rows: &Sequences, at_once: usize) -> Vec<(String, Tensor)> {
    let wants = Wants {
        entropy: true,
        hidden: true,
        ..Wants::default()
    };
    let (mut columns, mut hidden, mut sum) = (Vec::new(), Vec::new(), Gradients::default());
    for (number, d_logps) in d_logps(rows)
        .chunks(at_once * rows.completion_len)
        .enumerate()
    {
        let first = number * at_once;
        let forward = policy
            .forward(&rows.slice(first..(first + at_once).min(rows.rows())), 0.9)
            .unwrap();
        let outputs = forward.outputs(&wants).unwrap();
        columns.extend(
            outputs
                .logps
                .into_iter()
                .zip(outputs.entropy.unwrap())
                .flat_map(|(logp, entropy)| [logp, entropy]),
        );
        hidden.push(outputs.hidden.unwrap());
        forward.finish(d_logps, None, &mut sum).unwrap();
    }
    let columns = Tensor::from_vec(
        columns,
        (rows.rows() * rows.completion_len, 2),
        &Device::Cpu,
    )
    .unwrap();
    let outputs = [
        ("outputs".to_owned(), columns),
        ("features".to_owned(), Tensor::cat(&hidden, 0).unwrap()),
    ];
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap();
    let all = sum
        .iter()
        .map(|(name, gradient)| (name.to_owned(), wide(gradient)));
    outputs
        .into_iter()
        .map(|(name, tensor)| (name, wide(&tensor)))
        .chain(all)
        .collect()
}

fn compare(what: &str, actual: &[(String, Tensor)], expected: &[(String, Tensor)], tolerance: f32) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let mut worst = 0.0f32;
    for ((name, actual), (_, expected)) in actual.iter().zip(expected) {
        let distance = distance(actual, expected);
        worst = worst.max(distance);
        assert!(distance < tolerance, "{what}: {name}: {distance:e}");
    }
    println!("{what}: {worst:.1e}");
}

/// Every family, with and without an adapter.
fn policies() -> impl Iterator<Item = (String, Policy)> {
    let plain = NAMES.map(|name| {
        (
            name.to_owned(),
            load(&data("families-golden").join(name)).unwrap(),
        )
    });
    let adapted = NAMES.map(|name| {
        let (targets, rest) = (Targets::AllLinear, Map::new());
        let lora = LoraConfig {
            r: 3,
            alpha: 6.0,
            dropout: 0.0,
            targets,
            rslora: false,
            rest,
        };
        let folder = data("families-golden").join(name);
        let base = Base::of(name, &ModelFiles::Directory(folder.clone())).unwrap();
        let policy = load(&folder).unwrap().with_adapter(lora, base, 7).unwrap();
        for (number, (_, var)) in policy.params().iter().enumerate() {
            let wave: Vec<f32> = (0..var.elem_count())
                .map(|i| (0.3 * (i + 5 * number) as f32).sin())
                .collect();
            var.set(&Tensor::from_vec(wave, var.shape(), &Device::Cpu).unwrap())
                .unwrap();
        }
        (format!("{name} with an adapter"), policy)
    });
    plain.into_iter().chain(adapted)
}

#[test]
fn shared_prompts_change_results_only_by_rounding() {
    let rows = rows();
    for (name, policy) in policies() {
        let alone = pass(&policy, &rows, 1);
        for at_once in [2, 4, 6] {
            compare(
                &format!("{name}, {at_once} at once"),
                &pass(&policy, &rows, at_once),
                &alone,
                1e-5,
            );
        }
        let (shared, alone) = generic(|| (pass(&policy, &rows, 6), pass(&policy, &rows, 1)));
        compare(&format!("{name}, without kernels"), &shared, &alone, 1e-5);
        let again = policy.share().with_gradient_checkpointing(true);
        compare(
            &format!("{name}, computed again"),
            &pass(&again, &rows, 6),
            &pass(&policy, &rows, 6),
            f32::MIN_POSITIVE,
        );
        let half = policy.share().with_dtype(DType::BF16);
        compare(
            &format!("{name} in bf16"),
            &pass(&half, &rows, 6),
            &pass(&half, &rows, 1),
            0.1,
        );
    }
}

#[test]
fn computes_a_prompt_once_in_each_pass() {
    let (policy, rows) = (
        load(&data("families-golden").join("qwen3")).unwrap(),
        rows(),
    );
    // Prompts of 4, 2 and 1 tokens, and 5 + 1 + 0 + 2 + 2 + 4 tokens of completions without their
    // last tokens.
    let distinct = 7 + 14;
    // A small model computes the two halves of a pass in parallel.
    for (at_once, again) in [(1, 4 + 4 + 2), (2, 4 + 4 + 2), (6, 4 + 2)] {
        assert_eq!(
            policy.tokens_of_passes(&rows, at_once),
            (distinct + again, distinct),
            "{at_once} at once"
        );
    }
    let step = policy.in_training(Dropout::of_step(1, 1));
    assert_eq!(
        step.tokens_of_passes(&rows, 6),
        (distinct + 4 + 2, distinct),
        "without an adapter nothing is left out"
    );
    assert_eq!(
        rows.padding(),
        7 + 16,
        "before prompts and behind completions"
    );
}
