//! Generation with a key-value cache against repeated full forward passes, and the rules of
//! sampling.

use candle_core::{Device, Tensor};
use std::ops::Range;

use anyhow::Result;
use host_model::{Capture, Generation, Partner, Policy, Reply, SampledTokens, Wants};
use host_rng::stream;
use rand_chacha::ChaCha12Rng;

use crate::shared::{batch, logits, qwen2_numbers, random, sampling, values};

const VOCAB: usize = 29;

fn policy(scale: f64) -> Policy {
    let json = format!(
        r#"{{"model_type": "qwen2", "vocab_size": {VOCAB}, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "initializer_range": {scale}, "eos_token_id": 1}}"#
    );
    random(&json, 3)
}

fn prompts() -> Vec<Vec<u32>> {
    vec![
        vec![5, 9, 2, 14],
        vec![3],
        vec![5, 9, 2, 14],
        vec![28, 7, 11],
        vec![4, 4, 4, 4, 4, 4],
    ]
}

fn rngs(rows: impl Iterator<Item = u64>) -> Vec<ChaCha12Rng> {
    rows.map(|row| stream(11, "sample", &[row])).collect()
}

fn generate(policy: &Policy, prompts: &[Vec<u32>], generation: &Generation) -> Vec<SampledTokens> {
    policy
        .generate(prompts, generation, &mut rngs(0..prompts.len() as u64))
        .unwrap()
}

/// All logits of the token after `ids`, from one full forward pass.
fn next_logits(policy: &Policy, ids: &[u32]) -> Vec<f32> {
    values(&logits(
        policy,
        &policy
            .forward_detached(&batch(&[(ids, &[0])]), 1.0)
            .unwrap(),
    ))
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)))
        .unwrap() as u32
}

#[test]
fn greedy_decoding_equals_repeated_forward_passes() {
    let policy = policy(0.3);
    let completions = generate(&policy, &prompts(), &sampling(0.0, 0, 1.0));
    let mut distinct = std::collections::BTreeSet::new();
    for (prompt, completion) in prompts().iter().zip(&completions) {
        let mut ids = prompt.clone();
        for id in &completion.ids {
            assert_eq!(argmax(&next_logits(&policy, &ids)), *id, "after {ids:?}");
            ids.push(*id);
            distinct.insert(*id);
        }
        assert_eq!(completion.ids.len(), 12);
        assert!(completion.truncated);
    }
    assert!(
        distinct.len() > 4,
        "the test model repeats itself: {distinct:?}"
    );
}

#[test]
fn a_row_does_not_depend_on_the_other_rows() {
    let policy = policy(0.3);
    for generation in [sampling(1.0, 0, 1.0), sampling(0.8, 6, 0.9)] {
        let together = generate(&policy, &prompts(), &generation);
        assert_ne!(
            together[0].ids, together[2].ids,
            "equal prompts with other streams"
        );
        for (row, prompt) in prompts().into_iter().enumerate() {
            let alone = policy
                .generate(
                    &[prompt],
                    &generation,
                    &mut rngs(row as u64..row as u64 + 1),
                )
                .unwrap();
            assert_eq!(alone[0].ids, together[row].ids, "row {row}");
        }
    }
}

#[test]
fn waiting_for_a_slot_changes_no_token() {
    let policy = policy(0.3);
    let prompts: Vec<Vec<u32>> = (0..200)
        .map(|row| {
            (0..1 + row * 7919 % 13)
                .map(|i| (row * 5 + i) % 29)
                .collect()
        })
        .collect();
    let free = generate(&policy, &prompts, &sampling(1.0, 0, 1.0));
    let generation = Generation {
        eos_ids: vec![free[3].ids[4], free[8].ids[2]],
        ..sampling(1.0, 0, 1.0)
    };
    let wants = Wants {
        entropy: true,
        ..Wants::default()
    };
    let sampled = |max_num_seqs: usize| {
        let generation = Generation {
            max_num_seqs,
            ..generation.clone()
        };
        let capture = Some(Capture {
            wants,
            loss_temperature: 1.0,
        });
        let (completions, outputs) = policy
            .generate_with_outputs(
                &prompts,
                &generation,
                capture,
                &mut rngs(0..prompts.len() as u64),
                None,
            )
            .unwrap();
        (completions, outputs.unwrap())
    };
    let (together, expected) = sampled(0);
    let longest = together
        .iter()
        .map(|completion| completion.ids.len())
        .max()
        .unwrap();
    assert!(
        together
            .iter()
            .any(|completion| completion.ids.len() < longest / 2),
        "some end early"
    );
    for most in [1, 2, 3, 30, 199] {
        let (completions, outputs) = sampled(most);
        for (row, (one, other)) in completions.iter().zip(&together).enumerate() {
            assert_eq!(
                (&one.ids, one.truncated),
                (&other.ids, other.truncated),
                "row {row} of {most} at a time"
            );
            let own = row * longest..row * longest + one.ids.len();
            for (one, other) in outputs.logps[own.clone()]
                .iter()
                .zip(&expected.logps[own.clone()])
            {
                assert!(
                    one.to_bits() == other.to_bits(),
                    "bits: row {row} of {most} at a time {one} {other}"
                );
            }
        }
    }
}

/// Answers two turns of each row with tokens that depend on the row alone, and holds replies back
/// for a while.
struct Slow {
    first: usize,
    turns: Vec<usize>,
    ready: Vec<Reply>,
    clock: u64,
}

impl Partner for Slow {
    fn listen(&mut self, row: usize, sampled: &SampledTokens) -> Result<()> {
        assert_eq!(sampled.added.len(), self.turns[row]);
        self.turns[row] += 1;
        let number = self.first + row;
        let length = [1 + number * 31 % 17, 140 * (number % 3)][self.turns[row] % 2];
        let ids = (0..length)
            .map(|i| 2 + ((number * 7 + i * i) % 27) as u32)
            .collect();
        self.ready.push(Reply {
            row,
            ids: (self.turns[row] < 3).then_some(ids),
        });
        Ok(())
    }

    fn replies(&mut self, wait: bool) -> Result<Vec<Reply>> {
        self.clock += 1;
        let clock = self.clock;
        let late = |reply: &mut Reply| !(reply.row as u64 * 5 + clock).is_multiple_of(3);
        let mut now: Vec<Reply> = self.ready.extract_if(.., |reply| !late(reply)).collect();
        if wait && now.is_empty() {
            now.extend(self.ready.pop());
        }
        Ok(now)
    }
}

#[test]
fn a_row_continues_the_same_whenever_a_reply_comes() {
    let policy = policy(0.3);
    let prompts: Vec<Vec<u32>> = (0..23)
        .map(|row| {
            (0..1 + row / 4 * 7919 % 13)
                .map(|i| (row / 4 * 5 + i) % 29)
                .collect()
        })
        .collect();
    let sampled = |temperature, max_num_seqs, clock| {
        let room = Generation {
            max_completion_length: 340,
            max_turn_length: 9,
            ..sampling(temperature, 0, 1.0)
        };
        let generation = Generation {
            max_num_seqs,
            eos_ids: vec![1, 7],
            sampler_logps: true,
            ..room
        };
        let partner = |rows: Range<usize>| -> Box<dyn Partner> {
            Box::new(Slow {
                first: rows.start,
                turns: vec![0; rows.len()],
                ready: Vec::new(),
                clock,
            })
        };
        let rngs = &mut rngs(0..prompts.len() as u64);
        policy
            .generate_with_outputs(&prompts, &generation, None, rngs, Some(&partner))
            .unwrap()
            .0
    };
    let expected = sampled(1.0, 0, 0);
    assert!(
        expected
            .iter()
            .any(|one| one.added.iter().map(Range::len).max() > Some(128)),
        "a long reply"
    );
    assert!(
        expected
            .iter()
            .all(|one| one.added.len() == 2 && one.ids.len() == one.sampler_logps.len())
    );
    for (most, clock) in [(0, 1), (0, 7), (1, 0), (3, 5), (11, 2)] {
        assert_eq!(sampled(1.0, most, clock), expected, "{most} at a time");
    }
    for (prompt, one) in prompts.iter().zip(sampled(0.0, 5, 0)) {
        for (place, id) in one.ids.iter().enumerate() {
            let read = [prompt, &one.ids[..place]].concat();
            let added = one.added.iter().any(|added| added.contains(&place));
            assert!(
                added || argmax(&next_logits(&policy, &read)) == *id,
                "token {place} after {prompt:?}"
            );
        }
    }
}

#[test]
fn captured_outputs_equal_those_of_a_forward_pass() {
    let (policy, prompts) = (policy(0.3), prompts());
    let eos = generate(&policy, &prompts, &sampling(1.0, 0, 1.0))[1].ids[3];
    let generation = Generation {
        eos_ids: vec![eos],
        ..sampling(1.0, 0, 1.0)
    };
    let wants = Wants {
        entropy: true,
        hidden: true,
        last_layer_k: Some(4),
    };
    let capture = Capture {
        wants,
        loss_temperature: 1.0,
    };
    let (completions, outputs) = policy
        .generate_with_outputs(
            &prompts,
            &generation,
            Some(capture),
            &mut rngs(0..prompts.len() as u64),
            None,
        )
        .unwrap();
    assert_eq!(
        completions,
        generate(&policy, &prompts, &generation),
        "nothing else is drawn"
    );
    let outputs = outputs.unwrap();
    let last = outputs
        .last_layer
        .as_ref()
        .unwrap()
        .to_host()
        .unwrap()
        .into_owned();
    let hidden = values(outputs.hidden.as_ref().unwrap());
    let longest = completions
        .iter()
        .map(|completion| completion.ids.len())
        .max()
        .unwrap();
    assert!(
        completions
            .iter()
            .any(|completion| completion.ids.len() < longest),
        "some end early"
    );
    for (row, (prompt, completion)) in prompts.iter().zip(&completions).enumerate() {
        let rows = batch(&[(prompt, &completion.ids)]);
        let expected = policy
            .forward_detached(&rows, 1.0)
            .unwrap()
            .outputs(&wants)
            .unwrap();
        let theirs = expected
            .last_layer
            .as_ref()
            .unwrap()
            .to_host()
            .unwrap()
            .into_owned();
        for token in 0..completion.ids.len() {
            let near = |one: &[f32], other: &[f32], width: usize, what: &str| {
                let place = row * longest + token;
                let (one, other) = (
                    &one[place * width..][..width],
                    &other[token * width..][..width],
                );
                let far = one
                    .iter()
                    .zip(other)
                    .any(|(one, other)| (one - other).abs() > 1e-5 * (1.0 + other.abs()));
                assert!(
                    !far,
                    "{what} of token {token} of row {row}: {one:?} {other:?}"
                );
            };
            near(&outputs.logps, &expected.logps, 1, "log-probability");
            near(
                outputs.entropy.as_ref().unwrap(),
                expected.entropy.as_ref().unwrap(),
                1,
                "entropy",
            );
            near(
                &hidden,
                &values(expected.hidden.as_ref().unwrap()),
                16,
                "features",
            );
            near(&last.hidden, &theirs.hidden, 16, "features");
            near(&last.topk_logits, &theirs.topk_logits, 4, "top logits");
            near(&last.logsumexp, &theirs.logsumexp, 1, "logsumexp");
            near(&last.action_logits, &theirs.action_logits, 1, "logit");
        }
    }
}

#[test]
fn an_end_token_ends_only_its_row() {
    let policy = policy(0.3);
    let free = generate(&policy, &prompts(), &sampling(1.0, 0, 1.0));
    let eos = free[1].ids[3];
    let stopped = generate(
        &policy,
        &prompts(),
        &Generation {
            eos_ids: vec![eos],
            ..sampling(1.0, 0, 1.0)
        },
    );
    for (free, stopped) in free.iter().zip(&stopped) {
        match free.ids.iter().position(|id| *id == eos) {
            Some(at) => assert_eq!(
                (&free.ids[..=at], false),
                (stopped.ids.as_slice(), stopped.truncated)
            ),
            None => assert_eq!((&free.ids, true), (&stopped.ids, stopped.truncated)),
        }
        assert_eq!(stopped.ids.len(), stopped.logps.len());
    }
    assert!(!stopped[1].truncated && stopped[1].ids.len() <= 4);
    let last = Generation {
        eos_ids: vec![free[0].ids[11]],
        ..sampling(1.0, 0, 1.0)
    };
    assert!(generate(&policy, &prompts()[..1], &last)[0].ids.len() <= 12);
    let one = generate(
        &policy,
        &prompts(),
        &Generation {
            max_completion_length: 1,
            ..sampling(1.0, 0, 1.0)
        },
    );
    assert!(
        one.iter()
            .all(|completion| completion.ids.len() == 1 && completion.truncated)
    );
}

/// A model whose next-token logits are `logits` for every prompt: all layers return 0, so the head
/// reads a constant.
fn constant_model(logits: &[f64]) -> Policy {
    let policy = policy(0.0);
    let set = |name: &str, values: Vec<f32>| {
        let var = policy.params().get(name).unwrap();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap())
            .unwrap();
    };
    set("model.embed_tokens.weight", vec![1.0; VOCAB * 16]);
    set(
        "lm_head.weight",
        (0..VOCAB * 16)
            .map(|i| (logits.get(i / 16).copied().unwrap_or(-1e4) / 16.0) as f32)
            .collect(),
    );
    policy
}

#[test]
fn top_k_and_top_p_keep_the_tokens_that_transformers_keeps() {
    let golden = qwen2_numbers();
    let logits: Vec<f64> = serde_json::from_value(golden["sampling"]["logits"].clone()).unwrap();
    let policy = constant_model(&logits);
    for case in golden["sampling"]["cases"].as_array().unwrap() {
        let top_k = case["top_k"].as_u64().unwrap() as usize;
        let (temperature, top_p) = (
            case["temperature"].as_f64().unwrap(),
            case["top_p"].as_f64().unwrap(),
        );
        let kept: Vec<u32> = serde_json::from_value(case["kept"].clone()).unwrap();
        let draws = 4000;
        let generation = Generation {
            max_completion_length: 1,
            ..sampling(temperature, top_k, top_p)
        };
        let completions = generate(&policy, &vec![vec![2]; draws], &generation);
        let ids: Vec<u32> = completions
            .iter()
            .map(|completion| completion.ids[0])
            .collect();
        let weights: Vec<f64> = kept
            .iter()
            .map(|id| (logits[*id as usize] / temperature).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        for (id, weight) in kept.iter().zip(&weights) {
            let (seen, expected) = (
                ids.iter().filter(|other| *other == id).count() as f64,
                draws as f64 * weight / sum,
            );
            // Five standard deviations of a binomial count, plus one for small counts.
            assert!(
                (seen - expected).abs() < 5.0 * expected.sqrt() + 1.0,
                "{case}: id {id}: {seen} of {expected}"
            );
        }
        assert!(
            ids.iter().all(|id| kept.contains(id)),
            "{case}: an id outside the kept ones was drawn"
        );
    }
}

#[test]
fn greedy_takes_the_lower_id_and_no_random_number() {
    use rand::Rng;
    let policy = constant_model(&[1.0, 3.0, 0.0, 3.0]);
    let mut streams = rngs(0..1);
    let generation = sampling(0.0, 0, 1.0);
    let completion = policy
        .generate(&[vec![2]], &generation, &mut streams)
        .unwrap()
        .remove(0);
    assert_eq!(completion.ids, [1; 12]);
    assert_eq!(streams[0].next_u64(), rngs(0..1)[0].next_u64());
}

#[test]
fn sampling_takes_one_random_number_per_token() {
    use rand::Rng;
    let policy = policy(0.3);
    let mut streams = rngs(0..1);
    policy
        .generate(&[vec![2]], &sampling(0.9, 4, 0.8), &mut streams)
        .unwrap();
    let mut expected = rngs(0..1).remove(0);
    (0..12).for_each(|_| _ = expected.next_u64());
    assert_eq!(streams[0].next_u64(), expected.next_u64());
}

#[test]
fn refuses_unusable_requests() {
    let policy = policy(0.3);
    let message = |prompts: &[Vec<u32>], generation: &Generation, streams: u64| {
        policy
            .generate(prompts, generation, &mut rngs(0..streams))
            .unwrap_err()
            .to_string()
    };
    let good = sampling(1.0, 0, 1.0);
    assert!(message(&[], &good, 0).contains("there is no prompt"));
    assert!(message(&[vec![]], &good, 1).contains("prompt 0 has no token"));
    assert!(message(&[vec![29]], &good, 1).contains("token id 29 is outside the vocabulary of 29"));
    assert!(message(&[vec![1]], &good, 2).contains("2 random streams for 1 prompts"));
    assert!(message(&[vec![1]], &sampling(-1.0, 0, 1.0), 1).contains("`temperature` is -1"));
    assert!(message(&[vec![1]], &sampling(1.0, 0, 0.0), 1).contains("`top_p` is 0"));
    assert!(
        message(
            &[vec![1]],
            &Generation {
                max_completion_length: 0,
                ..good
            },
            1
        )
        .contains("`max_completion_length` is 0")
    );
}

#[test]
fn refuses_a_broken_model_without_a_panic() {
    let policy = policy(0.3);
    let var = policy.params().get("model.norm.weight").unwrap();
    var.set(&(var.as_detached_tensor() * f64::NAN).unwrap())
        .unwrap();
    let error = policy
        .generate(&[vec![1]], &sampling(1.0, 0, 1.0), &mut rngs(0..1))
        .unwrap_err();
    assert!(format!("{error:#}").contains("not finite"), "{error:#}");
}
