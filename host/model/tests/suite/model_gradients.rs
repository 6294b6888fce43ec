//! Gradients of the whole model: none is missing, and all equal finite differences.

use candle_core::{Device, Tensor};
use host_model::{Config, Gradients, Policy, Sequences, Truncation, Wants};
use host_rng::{fill_standard_normal, stream};

use crate::shared::values;

const TEMPERATURE: f64 = 0.8;

/// A random model whose norm weights and biases are random too.
fn policy(tied: bool) -> Policy {
    let json = format!(
        r#"{{"model_type": "qwen2", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "initializer_range": 0.3, "tie_word_embeddings": {tied}}}"#
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

/// Three rows. Two have the same prompt, and one has padding on both sides.
fn rows() -> Sequences {
    let (prompt_len, completion_len) = (4, 5);
    let ids = (0..3 * 9).map(|i| if i / 9 == 2 && i % 9 < 4 { i - 18 } else { i });
    let (ids, lengths, numbers) = (
        ids.map(|i| (i * 7 + i / 4) % 23).collect(),
        vec![5, 3, 4],
        Sequences::numbered(3),
    );
    Sequences {
        ids,
        starts: vec![0, 3, 0],
        prompt_len,
        completion_len,
        lengths,
        numbers,
    }
}

/// Derivatives of a loss by the log-probabilities; 0 on padding.
fn wave(phase: impl Fn(usize) -> f32) -> Vec<f32> {
    let padding = [8, 9, 14];
    (0..15)
        .map(|i| if padding.contains(&i) { 0.0 } else { phase(i) })
        .collect()
}

fn d_logps() -> Vec<f32> {
    wave(|i| {
        if i % 6 == 4 {
            0.0
        } else {
            (i as f32 * 0.9).sin()
        }
    })
}

/// Derivatives of a loss by the entropies.
fn d_entropy() -> Vec<f32> {
    wave(|i| {
        if i % 4 == 1 {
            0.0
        } else {
            (i as f32 * 1.7).cos()
        }
    })
}

fn loss(policy: &Policy, entropy: bool) -> f64 {
    let wants = Wants {
        entropy,
        ..Wants::default()
    };
    let outputs = policy
        .forward_detached(&rows(), TEMPERATURE)
        .unwrap()
        .outputs(&wants)
        .unwrap();
    let sum = |values: &[f32], weights: Vec<f32>| -> f64 {
        values
            .iter()
            .zip(weights)
            .map(|(value, weight)| f64::from(*value) * f64::from(weight))
            .sum()
    };
    sum(&outputs.logps, d_logps()) + sum(&outputs.entropy.unwrap_or_default(), d_entropy())
}

fn gradients(policy: &Policy, entropy: bool) -> Gradients {
    let mut sum = Gradients::default();
    let entropy = entropy.then(d_entropy);
    policy
        .forward(&rows(), TEMPERATURE)
        .unwrap()
        .finish(&d_logps(), entropy.as_deref(), &mut sum)
        .unwrap();
    sum
}

/// `(loss(w + eps d) - loss(w - eps d)) / (2 eps)` for the weight `name`, which keeps its value.
fn difference(policy: &Policy, entropy: bool, name: &str, direction: &[f32], eps: f64) -> f64 {
    let var = policy.params().get(name).unwrap();
    let start = var.as_detached_tensor().copy().unwrap();
    let direction = Tensor::from_slice(direction, start.shape(), &Device::Cpu).unwrap();
    let at = |shift: f64| {
        var.set(&(&start + (&direction * shift).unwrap()).unwrap())
            .unwrap();
        loss(policy, entropy)
    };
    let slope = (at(eps) - at(-eps)) / (2.0 * eps);
    var.set(&start).unwrap();
    slope
}

/// The largest error of any weight's gradient, relative to its norm.
fn worst_error(policy: &Policy, entropy: bool) -> f64 {
    let gradients = gradients(policy, entropy);
    assert_eq!(gradients.iter().count(), policy.params().iter().count());
    let mut worst = 0.0f64;
    for (name, gradient) in gradients.iter() {
        let gradient = values(gradient);
        let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        assert!(norm > 0.0, "{name} has no gradient");
        // Along the gradient the slope is the gradient's norm; along a fixed wave it can have any
        // size up to that norm.
        let along: Vec<f32> = gradient.iter().map(|g| g / norm).collect();
        let wave: Vec<f32> = (0..gradient.len())
            .map(|i| (1.1 * i as f32).cos())
            .collect();
        let wave_norm = wave.iter().map(|w| w * w).sum::<f32>().sqrt();
        let wave: Vec<f32> = wave.iter().map(|w| w / wave_norm).collect();
        for direction in [along, wave] {
            let slope: f32 = gradient.iter().zip(&direction).map(|(g, d)| g * d).sum();
            let measured = difference(policy, entropy, name, &direction, 2e-3);
            let error = (measured - f64::from(slope)).abs() / f64::from(norm);
            worst = worst.max(error);
            assert!(error < 1e-2, "{name}: relative error {error:e}");
        }
    }
    worst
}

#[test]
fn gradients_match_finite_differences() {
    for tied in [false, true] {
        println!(
            "tied {tied}: largest relative error {:.1e}",
            worst_error(&policy(tied), false)
        );
    }
}

#[test]
fn gradients_of_entropy_and_truncation_match_finite_differences() {
    let truncations = [None, Some((5, 1.0)), Some((0, 0.7)), Some((9, 0.8))].map(|truncation| {
        truncation.map(|(top_k, top_p)| Truncation {
            temperature: TEMPERATURE,
            top_k,
            top_p,
        })
    });
    for truncation in truncations {
        let policy = policy(false).with_truncation(truncation);
        for entropy in [truncation.is_none(), true] {
            println!(
                "{truncation:?}: largest relative error {:.1e}",
                worst_error(&policy, entropy)
            );
        }
    }
}

#[test]
fn a_truncation_that_cuts_nothing_changes_no_bit() {
    let whole = policy(false);
    let truncation = Truncation {
        temperature: TEMPERATURE,
        top_k: 23,
        top_p: 1.0,
    };
    let same = whole.share().with_truncation(Some(truncation));
    assert_eq!(loss(&whole, true).to_bits(), loss(&same, true).to_bits());
    let (whole, same) = (gradients(&whole, false), gradients(&same, false));
    assert!(
        whole
            .iter()
            .zip(same.iter())
            .all(|((_, a), (_, b))| values(a) == values(b))
    );
}

#[test]
fn gradients_of_micro_batches_add_up() {
    let policy = policy(false);
    let whole = gradients(&policy, false);
    let rows = rows();
    let mut sum: Option<Gradients> = None;
    for row in 0..3 {
        let part = policy
            .forward(&rows.slice(row..row + 1), TEMPERATURE)
            .unwrap()
            .backward(&d_logps()[row * 5..][..5])
            .unwrap();
        match &mut sum {
            None => sum = Some(part),
            Some(sum) => sum.accumulate(part).unwrap(),
        }
    }
    for (name, gradient) in sum.unwrap().iter() {
        let (sum, whole) = (values(gradient), values(whole.get(name).unwrap()));
        let scale = whole.iter().fold(0.0f32, |max, g| max.max(g.abs()));
        let worst = sum
            .iter()
            .zip(&whole)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst < 1e-5 * scale, "{name}: {worst:e} of {scale:e}");
    }
}

#[test]
fn padding_tokens_change_nothing() {
    let policy = policy(false);
    let mut other = rows();
    other.ids[9] = 22;
    other.ids[10] = 1;
    other.ids[17] = 5;
    let forward = |rows: &Sequences| policy.forward_detached(rows, TEMPERATURE).unwrap();
    let logps = |rows: &Sequences| forward(rows).outputs(&Wants::default()).unwrap().logps;
    assert_ne!(other, rows());
    assert_eq!(logps(&rows()), logps(&other));
}

#[test]
fn detached_passes_have_equal_outputs_and_no_gradients() {
    let policy = policy(false);
    let wants = Wants {
        entropy: true,
        last_layer_k: Some(3),
        ..Wants::default()
    };
    let (graph, detached) = (
        policy.forward(&rows(), TEMPERATURE).unwrap(),
        policy.forward_detached(&rows(), TEMPERATURE).unwrap(),
    );
    let outputs = [&graph, &detached].map(|forward| {
        let outputs = forward.outputs(&wants).unwrap();
        (
            outputs.logps,
            outputs.entropy,
            outputs.last_layer.unwrap().to_host().unwrap().into_owned(),
        )
    });
    assert_eq!(outputs[0], outputs[1]);
    assert!(detached.backward(&d_logps()).is_err());
    assert!(graph.backward(&d_logps()[1..]).is_err());
}

#[test]
fn a_reference_does_not_follow_the_policy() {
    let policy = policy(false);
    let reference = policy.reference().unwrap();
    let before = loss(&reference, false);
    assert_eq!(loss(&policy, false), before);
    let var = policy.params().get("model.norm.weight").unwrap();
    var.set(&(var.as_detached_tensor() * 2.0).unwrap()).unwrap();
    assert_ne!(loss(&policy, false), before);
    assert_eq!(loss(&reference, false), before);
}

#[test]
fn refuses_malformed_batches() {
    let policy = policy(false);
    let message = |rows: Sequences| {
        policy
            .forward(&rows, TEMPERATURE)
            .err()
            .unwrap()
            .to_string()
    };
    assert!(
        message(Sequences {
            starts: vec![0, 4, 0],
            ..rows()
        })
        .contains("starts at 4 in 4 prompt tokens")
    );
    assert!(
        message(Sequences {
            completion_len: 4,
            ..rows()
        })
        .contains("do not fill")
    );
    assert!(
        message(Sequences {
            lengths: vec![5, 6, 4],
            ..rows()
        })
        .contains("of 6 tokens is longer than 5")
    );
    assert!(
        message(Sequences {
            lengths: vec![5],
            ..rows()
        })
        .contains("1 lengths for 3 rows")
    );
    let mut outside = rows();
    outside.ids[3] = 23;
    assert!(message(outside).contains("token id 23 is outside the vocabulary of 23"));
    let error = policy.forward(&rows(), 0.0).err().unwrap().to_string();
    assert!(error.contains("loss temperature is 0"), "{error}");
}
