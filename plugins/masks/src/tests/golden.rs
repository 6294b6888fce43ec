//! Decisions of the public implementations on equal batches, written by `golden/make.py`.

use capo_plugin::testing::{Fixture, Records};
use capo_plugin::{ContextData, LastLayer, Tensor};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Golden {
    completions: usize,
    tokens: usize,
    group_size: usize,
    top: usize,
    batches: Vec<Arrays>,
    /// Each `token_mask` as text of zeros and ones.
    masks: Vec<Case<String>>,
    weights: Vec<Case<Vec<f32>>>,
}

#[derive(Deserialize)]
struct Arrays {
    lengths: Vec<usize>,
    logps: Vec<f32>,
    old_logps: Vec<f32>,
    sampler_logps: Vec<f32>,
    advantages: Vec<f32>,
    entropy: Vec<f32>,
    /// `[B, T, V]`: the trainer's logits.
    logits: Vec<f32>,
    /// `[B, T, top]`: ids of the sampler's most likely tokens.
    top_ids: Vec<u32>,
    top_logps: Vec<f32>,
}

impl Arrays {
    /// The fixture with a last layer whose top logits are the whole vocabulary.
    fn with_layer(&self, fixture: Fixture) -> Fixture {
        let (dims, n) = (fixture.batch().dims, fixture.batch().dims.len());
        let vocab_size = self.logits.len() / n;
        let (mut ids, mut tops, mut logsumexp) = (Vec::new(), Vec::new(), Vec::new());
        for logits in self.logits.chunks(vocab_size) {
            let mut ranked: Vec<u32> = (0..vocab_size as u32).collect();
            ranked.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            tops.extend(ranked.iter().map(|&id| logits[id as usize]));
            ids.extend(ranked);
            logsumexp.push(
                logits
                    .iter()
                    .map(|logit| f64::from(*logit).exp())
                    .sum::<f64>()
                    .ln() as f32,
            );
        }
        let (b, t, v) = (
            dims.completions as i64,
            dims.tokens as i64,
            vocab_size as i64,
        );
        let (wide, flat, zeros) = ([b, t, v], [b, t], vec![0.0; n]);
        fixture.last_layer(LastLayer::new(
            Tensor::from_f32(&zeros, &[b, t, 1]),
            Tensor::from_u32(&ids, &wide),
            Tensor::from_f32(&tops, &wide),
            Tensor::from_f32(&logsumexp, &flat),
            Tensor::from_f32(&zeros, &flat),
            vocab_size,
        ))
    }
}

/// One result per batch.
#[derive(Deserialize)]
struct Case<T> {
    id: String,
    table: Value,
    source: String,
    #[serde(alias = "keep", alias = "weights")]
    results: Vec<T>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/golden.json")).unwrap()
}

impl Golden {
    fn fixtures(&self) -> Vec<Fixture> {
        let fixture = |arrays: &Arrays| {
            Fixture::new(self.completions, self.tokens)
                .groups_of(self.group_size)
                .logps(&arrays.logps)
                .old_logps(&arrays.old_logps)
                .sampler_logps(&arrays.sampler_logps)
                .advantages(&arrays.advantages)
                .entropy(&arrays.entropy)
                .lengths(&arrays.lengths)
        };
        self.batches
            .iter()
            .map(|arrays| arrays.with_layer(fixture(arrays)))
            .collect()
    }

    /// Rollout context of each batch.
    fn contexts(&self) -> Vec<ContextData> {
        let context = |(fixture, arrays): (&Fixture, &Arrays)| {
            let mut context = fixture.context();
            context.set_top_k(self.top, arrays.top_ids.clone(), arrays.top_logps.clone());
            context
        };
        self.fixtures()
            .iter()
            .zip(&self.batches)
            .map(context)
            .collect()
    }
}

fn text(token_mask: &[u8]) -> String {
    token_mask
        .iter()
        .map(|keep| char::from(b'0' + keep))
        .collect()
}

#[test]
fn masks_decide_as_their_sources() {
    let golden = golden();
    for case in &golden.masks {
        let mut mask = super::mask(&case.id, &case.table.to_string());
        let batches = golden.fixtures().into_iter().zip(golden.contexts());
        for (number, ((fixture, context), expected)) in batches.zip(&case.results).enumerate() {
            let (batch, mut sink) = (fixture.batch_with(&context), Records::default());
            let mut token_mask = batch.completion_mask.to_vec();
            mask.mask(&mut sink, &batch, &mut token_mask).unwrap();
            let name = format!(
                "{} {} against {}, batch {number}",
                case.id, case.table, case.source
            );
            assert_eq!(text(&token_mask), *expected, "{name}");
        }
    }
}

#[test]
fn weights_are_those_of_their_sources() {
    let golden = golden();
    for case in &golden.weights {
        let mut weight = super::weight(&case.id, &case.table.to_string());
        for (number, (fixture, expected)) in golden.fixtures().iter().zip(&case.results).enumerate()
        {
            let name = format!(
                "{} {} against {}, batch {number}",
                case.id, case.table, case.source
            );
            for (i, (weight, expected)) in fixture
                .weigh(&mut weight)
                .unwrap()
                .weights
                .iter()
                .zip(expected)
                .enumerate()
            {
                let limit = 1e-6 * expected.abs().max(1.0);
                assert!(
                    (weight - expected).abs() <= limit,
                    "{name}, token {i}: {weight}, expected {expected}"
                );
            }
        }
    }
}

/// The source draws with torch. The candidates are compared above, so this test checks their number
/// and the dependence on the run's seed.
#[test]
fn clip_cov_drops_a_share_of_its_candidates() {
    let golden = golden();
    let candidates = golden
        .masks
        .iter()
        .find(|case| case.id == "masks.clip-cov")
        .unwrap();
    let mut few = super::mask(
        "masks.clip-cov",
        r#"{"clip_cov_ratio": 0.1, "clip_cov_lb": 0.2}"#,
    );
    for (fixture, all) in golden.fixtures().iter().zip(&candidates.results) {
        let mut drawn = |step| {
            text(
                &fixture
                    .clone()
                    .step(step)
                    .mask(&mut few)
                    .unwrap()
                    .token_mask,
            )
        };
        let [first, again, other] = [drawn(3), drawn(3), drawn(4)];
        let dropped = |token_mask: &str| {
            token_mask.matches('0').count()
                - fixture
                    .batch()
                    .completion_mask
                    .iter()
                    .filter(|m| **m == 0)
                    .count()
        };
        let tokens = fixture
            .batch()
            .completion_mask
            .iter()
            .filter(|mask| **mask == 1)
            .count();
        assert_eq!(dropped(&first), tokens / 10, "verl: int(ratio * tokens)");
        assert!(
            first.bytes().zip(all.bytes()).all(|(few, all)| few >= all),
            "only candidates go"
        );
        assert!(
            first == again && first != other,
            "every step draws anew, and the same again"
        );
    }
}
