//! Recorded batches with numbers from a dense program in double precision that shares no code with this crate.

use std::path::PathBuf;

use capo_core::{
    Acceptance, CurvatureModel, Granularity, OptimizerKind, OptimizerModel, Policy, SecondMoment, Semantics,
};
use safetensors::{SafeTensors, tensor::Metadata};

use super::fixture::{Batch, Dims, assert_close};

const TOLERANCE: f64 = 1e-5;

/// One recorded step of a case: the batch, its settings and what is expected of it.
struct Recorded {
    batch: Batch,
    policy: Policy,
    optimizer: OptimizerModel,
    learning_rate: f64,
    keep: Vec<u8>,
    m_f: Vec<f64>,
    m_h: Vec<f64>,
}

fn case(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/replay").join(name)
}

/// Reads a number of the case's `mask.toml`.
fn threshold(name: &str, key: &str) -> f64 {
    let text = std::fs::read_to_string(case(name).join("mask.toml")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_start_matches([' ', '=']).parse().unwrap()
}

fn numbers<const N: usize, X>(file: &SafeTensors, name: &str, read: fn([u8; N]) -> X) -> Vec<X> {
    let tensor = file.tensor(name).unwrap();
    tensor.data().as_chunks().0.iter().map(|&bytes| read(bytes)).collect()
}

fn batch(file: &SafeTensors, vocab: usize, group_size: usize) -> Batch {
    let shape = |name: &str| file.tensor(name).unwrap().shape().to_vec();
    let (hidden, topk) = (shape("hidden"), shape("topk_ids"));
    Batch {
        dims: Dims(hidden[0], hidden[1], topk[2], hidden[2], vocab),
        group_size,
        hidden: numbers(file, "hidden", f32::from_le_bytes),
        topk_ids: numbers(file, "topk_ids", u32::from_le_bytes),
        topk_logits: numbers(file, "topk_logits", f32::from_le_bytes),
        action_ids: numbers(file, "completion_ids", u32::from_le_bytes),
        action_logits: numbers(file, "action_logits", f32::from_le_bytes),
        logsumexp: numbers(file, "logsumexp", f32::from_le_bytes),
        advantages: numbers(file, "advantages", f32::from_le_bytes),
        mask: numbers(file, "completion_mask", u8::from_le_bytes),
    }
}

fn steps(name: &str, kind: OptimizerKind) -> Vec<Recorded> {
    let read = |file: String| std::fs::read(case(name).join(file)).unwrap();
    let step = |index: usize| {
        let (input, expected) =
            (read(format!("batch-{index:04}.safetensors")), read(format!("expected-{index:04}.safetensors")));
        let (_, metadata): (usize, Metadata) = SafeTensors::read_metadata(&input).unwrap();
        let scalars = metadata.metadata().clone().unwrap();
        let optimizer: serde_json::Value = serde_json::from_str(&scalars["optimizer"]).unwrap();
        let setting = |key: &str| optimizer[key].as_f64().unwrap();
        let number = |key: &str| scalars[key].parse().unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        Recorded {
            batch: batch(&SafeTensors::deserialize(&input).unwrap(), number("vocab_size"), number("group_size")),
            policy: Policy { temperature: scalars["sampling_temperature"].parse().unwrap(), top_k: None },
            optimizer: OptimizerModel {
                kind,
                beta1: setting("beta1"),
                beta2: setting("beta2"),
                eps: setting("eps"),
                second_moment: SecondMoment::Kept,
                weight_decay: 0.0,
            },
            learning_rate: setting("learning_rate"),
            keep: numbers(&expected, "keep", u8::from_le_bytes),
            m_f: numbers(&expected, "m_f", f64::from_le_bytes),
            m_h: numbers(&expected, "m_h", f64::from_le_bytes),
        }
    };
    (0..4).map(step).collect()
}

fn check(name: &str, granularity: Granularity, kind: OptimizerKind) {
    let (fisher, hessian) = (threshold(name, "fisher_threshold"), threshold(name, "hessian_threshold"));
    let semantics = if name.starts_with("authors") { Semantics::AUTHORS } else { Semantics::PAPER };
    let acceptance = Acceptance {
        fisher_threshold: Some(fisher),
        hessian_range: Some([-hessian, hessian]),
        ..Acceptance::default()
    };
    let mut model = CurvatureModel::new(acceptance, granularity, semantics).unwrap();
    let (mut kept, mut rejected) = (0, 0);
    for step in steps(name, kind) {
        let assessment = step.batch.assess(&model, &step.policy, &step.optimizer, step.learning_rate);
        assert_close(&format!("{name}: m_f"), &assessment.m_f, &step.m_f, TOLERANCE);
        assert_close(&format!("{name}: m_h"), &assessment.m_h, &step.m_h, TOLERANCE);
        assert_eq!(assessment.keep, step.keep, "{name}");
        kept += assessment.tokens - assessment.rejected.total;
        rejected += assessment.rejected.total;
        step.batch.commit(&mut model, &step.policy, &step.optimizer, &assessment.keep);
    }
    assert!(kept > 0 && rejected > 0, "{name}: a case that keeps {kept} and rejects {rejected} tokens tests little");
}

#[test]
fn the_reference_cases() {
    let granularities =
        [Granularity::Token, Granularity::Completion, Granularity::Group, Granularity::Batch].into_iter();
    for (granularity, name) in granularities.zip(["token", "completion", "group", "batch"]) {
        for (optimizer, kind) in [("sgd", OptimizerKind::Sgd), ("adam", OptimizerKind::Adam)] {
            check(&format!("paper-{name}-{optimizer}"), granularity, kind);
            // The authors' code knows no groups.
            if granularity != Granularity::Group {
                check(&format!("authors-{name}-{optimizer}"), granularity, kind);
            }
        }
    }
}
