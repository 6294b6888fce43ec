//! The model against Hugging Face transformers (numbers made by `data/qwen2-golden/make.py`).

use host_model::{Sequences, Wants};
use serde_json::Value;

use crate::shared::{d_logps, logits, qwen2, qwen2_numbers, values, wave_difference};

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_f64().unwrap())
        .collect()
}

fn sequences(golden: &Value, prompt_len: usize) -> Sequences {
    let rows: Vec<Vec<f64>> = golden["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(numbers)
        .collect();
    Sequences {
        ids: rows.iter().flatten().map(|id| *id as u32).collect(),
        starts: numbers(&golden["starts"])
            .iter()
            .map(|start| *start as usize)
            .collect(),
        prompt_len,
        completion_len: rows[0].len() - prompt_len,
        lengths: vec![rows[0].len() - prompt_len; rows.len()],
        numbers: Sequences::numbered(rows.len()),
    }
}

fn largest_difference(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, f64::max)
}

#[test]
fn logits_of_left_padded_rows_match_transformers() {
    let golden = qwen2_numbers();
    for name in ["untied", "tied"] {
        let policy = qwen2(name);
        let (prompt_len, vocab) = (4, policy.config().vocab_size);
        let rows = sequences(&golden, prompt_len);
        let length = prompt_len + rows.completion_len;
        let all = numbers(&golden[name]["logits"]);
        let expected: Vec<f64> = all
            .chunks_exact(length * vocab)
            .flat_map(|row| row[(prompt_len - 1) * vocab..(length - 1) * vocab].to_vec())
            .collect();
        let actual = values(&logits(
            &policy,
            &policy.forward_detached(&rows, 1.0).unwrap(),
        ));
        let difference = largest_difference(&actual, &expected);
        println!("{name}: largest difference of logits {difference:.2e}");
        assert!(difference < 1e-4, "{name}: {difference:e}");
    }
}

#[test]
fn logps_and_gradients_match_transformers() {
    let golden = qwen2_numbers();
    let rows = sequences(&golden, golden["prompt_len"].as_u64().unwrap() as usize);
    let temperature = golden["loss_temperature"].as_f64().unwrap();
    for name in ["untied", "tied"] {
        let forward = qwen2(name).forward(&rows, temperature).unwrap();
        let outputs = forward.outputs(&Wants::default()).unwrap();
        let difference = largest_difference(&outputs.logps, &numbers(&golden[name]["logps"]));
        assert!(difference < 2e-5, "{name}: {difference:e}");

        let gradients = forward.backward(&d_logps()).unwrap();
        let expected = golden[name]["gradients"].as_object().unwrap();
        assert_eq!(gradients.iter().count(), expected.len());
        let mut worst = 0.0f64;
        for (weight, gradient) in gradients.iter() {
            let error = wave_difference(gradient, &expected[weight]);
            worst = worst.max(error);
            assert!(error < 2e-5, "{name}: {weight}: {error:e}");
        }
        println!(
            "{name}: largest difference of logps {difference:.2e}, relative difference of gradients {worst:.2e}"
        );
    }
}

#[test]
fn last_layer_data_reproduce_the_outputs() {
    let golden = qwen2_numbers();
    let (policy, rows) = (qwen2("untied"), sequences(&golden, 4));
    let (temperature, k) = (0.7, 5);
    let forward = policy.forward_detached(&rows, temperature).unwrap();
    let outputs = forward
        .outputs(&Wants {
            entropy: true,
            last_layer_k: Some(k),
            ..Wants::default()
        })
        .unwrap();
    let last_layer = outputs.last_layer.unwrap();
    let (data, logits) = (
        last_layer.to_host().unwrap(),
        values(&logits(&policy, &forward)),
    );
    assert_eq!((data.k, data.width, data.vocab_size), (5, 32, 48));
    for (n, row) in logits.chunks_exact(48).enumerate() {
        let action = rows.ids
            [n / rows.completion_len * 11 + rows.prompt_len + n % rows.completion_len]
            as usize;
        let scaled: Vec<f64> = row
            .iter()
            .map(|logit| f64::from(*logit) / temperature)
            .collect();
        let logsumexp = scaled.iter().map(|z| z.exp()).sum::<f64>().ln();
        let entropy: f64 = scaled
            .iter()
            .map(|z| -(z - logsumexp).exp() * (z - logsumexp))
            .sum();
        assert!((f64::from(data.logsumexp[n]) - logsumexp).abs() < 1e-5);
        assert!((f64::from(outputs.logps[n]) - (scaled[action] - logsumexp)).abs() < 1e-5);
        assert!((f64::from(outputs.entropy.as_ref().unwrap()[n]) - entropy).abs() < 1e-5);
        assert_eq!(data.action_logits[n], row[action]);
        let mut order: Vec<u32> = (0..48).collect();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
        assert_eq!(data.topk_ids[n * k..][..k], order[..k]);
        let top: Vec<f32> = order[..k].iter().map(|id| row[*id as usize]).collect();
        assert_eq!(data.topk_logits[n * k..][..k], top);
    }
    let all = forward
        .outputs(&Wants {
            last_layer_k: Some(1000),
            ..Wants::default()
        })
        .unwrap();
    assert_eq!(all.last_layer.unwrap().extents(), (32, 48));
}
