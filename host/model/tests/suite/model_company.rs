//! The bits of a row do not depend on the other rows that run through the model with it.

use std::ops::Range;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use host_model::{Base, Generation, LoraConfig, ModelFiles, Policy, Targets, Wants};
use host_rng::stream;
use serde_json::Map;

use crate::shared::{batch, random, sampling};

/// Length of the longest completion.
const TOKENS: usize = 9;
/// Numbers of other rows.
const COMPANY: [usize; 4] = [0, 2, 7, 33];
const MOST: usize = 34;

/// A model with small and large matrices, so that its sums are computed in one part and in two.
fn model() -> Policy {
    random(
        r#"{"model_type": "qwen2", "vocab_size": 37, "hidden_size": 32, "intermediate_size": 600,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 1024,
        "initializer_range": 0.2}"#,
        3,
    )
}

/// The model with an adapter of rank `r` whose second factors are not 0.
fn adapted(r: usize) -> Policy {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("company-{r}"));
    model().save(&folder).unwrap();
    let files = ModelFiles::Directory(folder);
    let lora = LoraConfig {
        r,
        alpha: 8.0,
        dropout: 0.0,
        targets: Targets::AllLinear,
        rslora: false,
        rest: Map::new(),
    };
    let base = Base::of("base", &files).unwrap();
    let policy = Policy::load(&files, &Device::Cpu)
        .unwrap()
        .with_adapter(lora, base, 7)
        .unwrap();
    for (number, (_, var)) in policy.params().iter().enumerate() {
        let wave: Vec<f32> = (0..var.elem_count())
            .map(|i| 0.3 * (0.7 * (i + 5 * number) as f32).sin())
            .collect();
        var.set(&Tensor::from_vec(wave, var.shape(), &Device::Cpu).unwrap())
            .unwrap();
    }
    policy
}

/// Runs `work` on models with and without an adapter, in both dtypes.
fn with_each(work: impl Fn(&str, Policy)) {
    for dtype in [DType::F32, DType::BF16] {
        work(&format!("{dtype:?}"), model().with_dtype(dtype));
        for r in [2, 8] {
            work(
                &format!("{dtype:?}, an adapter of rank {r}"),
                adapted(r).with_dtype(dtype),
            );
        }
    }
}

fn ids(row: usize, count: usize) -> Vec<u32> {
    (0..count)
        .map(|i| ((row * row + 3 * i * i + 7 * i * (row + 1)) % 36) as u32 + 1)
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Prompts with completions of one to nine tokens. Every fourth row has the same prompt.
struct Rows(Vec<(Vec<u32>, Vec<u32>)>);

impl Rows {
    fn new(count: usize, prompt: usize) -> Self {
        Self(
            (0..count)
                .map(|row| (ids(row % 4, prompt), ids(40 + row, 1 + row % TOKENS)))
                .collect(),
        )
    }

    fn logps(&self, policy: &Policy, range: Range<usize>) -> Vec<Vec<u32>> {
        let rows: Vec<(&[u32], &[u32])> = self.0[range]
            .iter()
            .map(|(prompt, own)| (&prompt[..], &own[..]))
            .collect();
        let batch = batch(&rows);
        let logps = policy
            .forward_detached(&batch, 1.0)
            .unwrap()
            .outputs(&Wants::default())
            .unwrap()
            .logps;
        let own = rows.iter().zip(logps.chunks(batch.completion_len));
        own.map(|((_, completion), logps)| bits(&logps[..completion.len()]))
            .collect()
    }
}

#[test]
fn passes_over_whole_completions() {
    with_each(|what, policy| {
        for prompt in [1, 6] {
            let rows = Rows::new(MOST, prompt);
            let expected = rows.logps(&policy, 0..MOST);
            for company in COMPANY {
                let first = (MOST - company - 1) / 2;
                let range = first..first + company + 1;
                assert_eq!(
                    rows.logps(&policy, range.clone()),
                    expected[range],
                    "{what}, {prompt}, {company}"
                );
            }
        }
    });
}

/// Sums over the tokens of a long prompt are computed in two parts.
#[test]
fn completions_of_a_long_prompt() {
    let (rows, policy) = (Rows::new(5, 520), model());
    let expected = rows.logps(&policy, 0..5);
    for range in [0..1, 4..5, 0..2, 1..5] {
        assert_eq!(
            rows.logps(&policy, range.clone()),
            expected[range.clone()],
            "{range:?}"
        );
    }
}

/// Completions end one after another, so each pass has fewer rows than the one before.
#[test]
fn sampling_in_company() {
    with_each(|what, policy| {
        let generation = Generation {
            max_completion_length: TOKENS,
            eos_ids: vec![1, 2, 3],
            ..sampling(1.0, 0, 1.0)
        };
        let prompts: Vec<Vec<u32>> = (0..MOST).map(|row| ids(row, 1 + row % 5)).collect();
        let sampled = |first: usize, count: usize| -> Vec<(Vec<u32>, Vec<u32>)> {
            let mut rngs: Vec<_> = (first..first + count)
                .map(|row| stream(5, "sample", &[row as u64]))
                .collect();
            let completions = policy
                .generate(&prompts[first..first + count], &generation, &mut rngs)
                .unwrap();
            completions
                .into_iter()
                .map(|one| (one.ids, bits(&one.logps)))
                .collect()
        };
        let expected = sampled(0, MOST);
        assert!(
            expected.iter().any(|(ids, _)| ids.len() < TOKENS),
            "some end earlier"
        );
        for company in COMPANY {
            let first = (MOST - company - 1) / 2;
            assert!(
                sampled(first, company + 1) == expected[first..=first + company],
                "{what}, {company}"
            );
        }
    });
}
