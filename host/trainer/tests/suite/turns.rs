//! Completions of several turns, compared with TRL on the same ids
//! (`data/objectives-golden/turns.py`): the model reads tokens that it did not draw, but they have
//! no part in the loss and its gradients.

use std::collections::BTreeMap;

use candle_core::Device;
use capo_loader::ComponentConfig;
use capo_loader::decision::Decision;
use capo_loader::registry::Registry;
use capo_loader::watchdog::Watchdog;
use capo_plugin::testing::Records;
use capo_plugin::{Denominator, ObjectiveHandle, OptimizerKind};
use host_model::{Gradients, Policy, Sequences, Wants, embedded};
use host_trainer::stages::backward::reduce;
use host_trainer::stages::batch::{BatchWithLogps, SampledBatch};
use host_trainer::stages::objective;
use serde::Deserialize;
use toml::Table;

use crate::shared::{data, first_step, json};

#[derive(Deserialize)]
struct Golden {
    limit: usize,
    prompt: Vec<u32>,
    completions: Vec<Vec<u32>>,
    /// 1 for the model's tokens.
    mask: Vec<Vec<u8>>,
    advantages: Vec<f32>,
    /// `[B, T]`: 0 where the mask is 0.
    logps: Vec<f64>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    loss_type: String,
    loss: f64,
    /// For each weight, the norm of its gradient, and the product of the gradient with
    /// `cos(0.37 i)`.
    gradients: BTreeMap<String, [f64; 2]>,
}

impl Golden {
    /// The rows, padded to the longest one.
    fn batch(&self) -> SampledBatch {
        let longest = self.completions.iter().map(Vec::len).max().unwrap();
        let rows = self.completions.len();
        let padded = |completion: &Vec<u32>| {
            let pad = vec![0; longest - completion.len()];
            [self.prompt.as_slice(), completion.as_slice(), &pad].concat()
        };
        let sequences = Sequences {
            ids: self.completions.iter().flat_map(padded).collect(),
            starts: vec![0; rows],
            prompt_len: self.prompt.len(),
            completion_len: longest,
            lengths: self.completions.iter().map(Vec::len).collect(),
            numbers: Sequences::numbered(rows),
        };
        let completions: Vec<&[u32]> = self.completions.iter().map(Vec::as_slice).collect();
        let mut batch = SampledBatch::new(
            sequences,
            &completions,
            vec![0; rows],
            vec![0.0; rows],
            rows,
            0,
        );
        let mask: Vec<u8> = self
            .mask
            .iter()
            .flat_map(|mask| [mask.as_slice(), &vec![0; longest - mask.len()]].concat())
            .collect();
        batch.arrays.completion_mask = mask.into();
        batch
    }
}

/// The largest error of a gradient, relative to its norm.
fn worst(gradients: &Gradients, expected: &BTreeMap<String, [f64; 2]>) -> f64 {
    assert_eq!(gradients.iter().count(), expected.len());
    let of_weight = |(name, [norm, dot]): (&String, &[f64; 2])| {
        let values: Vec<f32> = gradients
            .get(name)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        let found = values
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
            .sqrt();
        let waved: f64 = values
            .iter()
            .zip(0..)
            .map(|(value, i)| f64::from(*value) * (0.37 * f64::from(i)).cos())
            .sum();
        (found - norm).abs().max((waved - dot).abs()) / norm
    };
    expected.iter().map(of_weight).fold(0.0, f64::max)
}

#[test]
fn loss_and_gradients_of_turns_agree_with_trl() {
    let golden: Golden = json(&data("objectives-golden/turns.json"));
    let files = embedded::model_files("embedded:tiny-arithmetic").unwrap();
    let policy = Policy::load(&files, &Device::Cpu).unwrap();
    for (_, weight) in policy.weights().iter() {
        weight
            .set(&(weight.as_detached_tensor() * 0.5).unwrap())
            .unwrap();
    }
    for case in &golden.cases {
        let batch = golden.batch();
        let tokens = batch.dims().tokens as usize;
        let forward = policy.forward(&batch.sequences, 1.0).unwrap();
        let outputs = forward
            .outputs(&Wants {
                entropy: true,
                ..Wants::default()
            })
            .unwrap();
        for (i, expected) in golden
            .logps
            .iter()
            .enumerate()
            .filter(|(i, _)| batch.completion_mask()[*i] == 1)
        {
            assert!(
                (f64::from(outputs.logps[i]) - expected).abs() < 2e-6,
                "token {i}: {} {expected}",
                outputs.logps[i]
            );
        }
        let config = ComponentConfig {
            id: format!("{}.objective", case.loss_type),
            table: Table::new(),
        };
        let mut component: ObjectiveHandle = Registry::open(&[])
            .unwrap()
            .create(&config, &Watchdog::off())
            .unwrap();
        let info = first_step(
            OptimizerKind::ADAMW,
            component.reduction(),
            Denominator::KEPT,
            golden.limit,
        );
        let advantages = golden
            .advantages
            .iter()
            .flat_map(|&advantage| vec![advantage; tokens])
            .collect();
        let batch = BatchWithLogps::new(batch, outputs).unwrap();
        let batch = objective::evaluate(
            &mut component,
            &mut Records::default(),
            batch,
            advantages,
            &info,
        )
        .unwrap();
        let decision = Decision::of(batch.sampled().completion_mask().to_vec());
        let reduced = reduce(&batch, &info, &decision, None).unwrap();
        assert!(
            (reduced.loss - case.loss).abs() < 2e-6,
            "{}: {} {}",
            case.loss_type,
            reduced.loss,
            case.loss
        );
        let gradients = forward.backward(&reduced.d_logps).unwrap();
        let worst = worst(&gradients, &case.gradients);
        assert!(worst < 2e-6, "{}: {worst}", case.loss_type);
    }
}
