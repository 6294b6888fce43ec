//! Compares the mismatch metrics with the formulas of TRL and verl (`data/mismatch/make.py`).

use std::collections::BTreeMap;

use capo_plugin::Dims;
use host_trainer::metrics::mismatch;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    training: Vec<Vec<f32>>,
    sampler: Vec<Vec<f32>>,
    mask: Vec<Vec<u8>>,
    expected: BTreeMap<String, f64>,
}

fn dims(completions: usize, tokens: usize) -> Dims {
    Dims {
        completions: completions as u64,
        tokens: tokens as u64,
        group_size: 1,
    }
}

#[test]
fn agrees_with_trl_and_verl() {
    let cases: BTreeMap<String, Case> =
        serde_json::from_str(include_str!("../data/mismatch/golden.json")).unwrap();
    assert_eq!(cases.len(), 5);
    for (name, case) in cases {
        let b = case.mask.len();
        let t = case.mask[0].len();
        let [training, sampler] = [case.training, case.sampler].map(|rows| rows.concat());
        let found: BTreeMap<String, f64> =
            mismatch(&training, &sampler, &case.mask.concat(), dims(b, t))
                .into_iter()
                .collect();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            case.expected.keys().collect::<Vec<_>>()
        );
        for (key, expected) in case.expected {
            // verl adds 1e-8 to the denominators of its means.
            let close = 1e-6 * expected.abs() + 1e-8;
            assert!(
                (found[&key] - expected).abs() <= close,
                "{name}, {key}: {}, expected {expected}",
                found[&key]
            );
        }
    }
}

#[test]
fn ignores_padding_and_empty_completions() {
    let training = [-1.0, -2.0, -0.5, f32::NAN];
    let sampler = [-1.5, -1.0, -0.25, f32::INFINITY];
    let two = mismatch(&training[..2], &sampler[..2], &[1, 1], dims(1, 2));
    let padded = mismatch(&training, &sampler, &[1, 1, 0, 0], dims(2, 2));
    assert_eq!(two, padded);
    assert!(two.iter().all(|(_, value)| value.is_finite()));
    assert!(mismatch(&training, &sampler, &[0; 4], dims(2, 2)).is_empty());
}

#[test]
fn agrees_with_numbers_computed_by_hand() {
    // Log-ratios 0.5 and −1 of one completion.
    let values: BTreeMap<String, f64> = mismatch(&[-1.0, -2.0], &[-1.5, -1.0], &[1, 1], dims(1, 2))
        .into_iter()
        .collect();
    let expected = [
        ("sampling/sampling_logp_difference/mean", 0.75),
        ("sampling/sampling_logp_difference/max", 1.0),
        ("sampling/importance_sampling_ratio/min", (-1.0_f64).exp()),
        ("sampling/importance_sampling_ratio/max", 0.5_f64.exp()),
        ("rollout_corr/kl", 0.25),
        ("rollout_corr/log_ppl_diff", 0.25),
        ("rollout_corr/training_ppl", 1.5_f64.exp()),
        ("rollout_corr/ppl_ratio", 0.25_f64.exp()),
        (
            "rollout_corr/chi2_token",
            (1.0_f64.exp() + (-2.0_f64).exp()) / 2.0 - 1.0,
        ),
        ("rollout_corr/chi2_seq", (-1.0_f64).exp() - 1.0),
    ];
    for (name, expected) in expected {
        assert!(
            (values[name] - expected).abs() < 1e-12,
            "{name}: {}, expected {expected}",
            values[name]
        );
    }
}
