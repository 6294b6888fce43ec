//! Recorded batches with numbers from a dense program in double precision that shares no code with this crate.

use std::path::PathBuf;

use capo_core::{
    Acceptance, CurvatureModel, Granularity, OptimizerKind, OptimizerModel, Policy, SecondMoment, Semantics,
};
use safetensors::{SafeTensors, tensor::Metadata};

use super::fixture::{Batch, Dims, GRANULARITIES, assert_close};

const TOLERANCE: f64 = 1e-5;

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
    let read = |file: String| std::fs::read(case(name).join(file)).unwrap();
    for index in 0..4 {
        let (input, expected) =
            (read(format!("batch-{index:04}.safetensors")), read(format!("expected-{index:04}.safetensors")));
        let (_, metadata): (usize, Metadata) = SafeTensors::read_metadata(&input).unwrap();
        let scalars = metadata.metadata().clone().unwrap();
        let settings: serde_json::Value = serde_json::from_str(&scalars["optimizer"]).unwrap();
        let setting = |key: &str| settings[key].as_f64().unwrap();
        let number = |key: &str| scalars[key].parse().unwrap();
        let batch = batch(&SafeTensors::deserialize(&input).unwrap(), number("vocab_size"), number("group_size"));
        let policy = Policy { temperature: scalars["sampling_temperature"].parse().unwrap(), top_k: None };
        let (beta1, beta2, eps) = (setting("beta1"), setting("beta2"), setting("eps"));
        let optimizer =
            OptimizerModel { kind, beta1, beta2, eps, second_moment: SecondMoment::Kept, weight_decay: 0.0 };

        let assessment = batch.assess(&model, &policy, &optimizer, setting("learning_rate"));
        let expected = SafeTensors::deserialize(&expected).unwrap();
        for (what, got) in [("m_f", &assessment.m_f), ("m_h", &assessment.m_h)] {
            assert_close(&format!("{name}: {what}"), got, &numbers(&expected, what, f64::from_le_bytes), TOLERANCE);
        }
        assert_eq!(assessment.keep, numbers(&expected, "keep", u8::from_le_bytes), "{name}");
        kept += assessment.tokens - assessment.rejected.total;
        rejected += assessment.rejected.total;
        batch.commit(&mut model, &policy, &optimizer, &assessment.keep);
    }
    assert!(kept > 0 && rejected > 0, "{name}: a case that keeps {kept} and rejects {rejected} tokens tests little");
}

#[test]
fn the_reference_cases() {
    for (granularity, name) in GRANULARITIES.into_iter().zip(["token", "completion", "group", "batch"]) {
        for (optimizer, kind) in [("sgd", OptimizerKind::Sgd), ("adam", OptimizerKind::Adam)] {
            check(&format!("paper-{name}-{optimizer}"), granularity, kind);
            // The authors' code knows no groups.
            if granularity != Granularity::Group {
                check(&format!("authors-{name}-{optimizer}"), granularity, kind);
            }
        }
    }
}
