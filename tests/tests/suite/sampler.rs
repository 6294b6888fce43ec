//! A sampler that is not the trainer: in bf16, truncated, or at another temperature.

use insta::assert_snapshot;
use tests::Folder;

use crate::{FOUR_STEPS, refused};

/// Nothing but what `extra` says tells sampler and trainer apart.
fn args(extra: &str) -> String {
    format!("--set train.loss_temperature=0.9 {FOUR_STEPS} {extra}")
}

const MISMATCH: [&str; 4] = [
    "sampling/sampling_logp_difference/max",
    "sampling/importance_sampling_ratio/mean",
    "rollout_corr/k3_kl",
    "rollout_corr/chi2_seq",
];

#[test]
fn the_sampler_computes_in_bf16_and_the_trainer_does_not() {
    let folder = Folder::new();
    let same = folder.train("same", &args(""));
    for name in MISMATCH {
        assert!(same.metric(name).is_empty(), "{name} where sampler and trainer are one");
    }
    let rounded = folder.train("rounded", &args("--set rollout.dtype=bf16"));
    let farthest = rounded.metric(MISMATCH[0]);
    assert_eq!(farthest.len(), 4);
    assert!(farthest.iter().all(|far| (1e-3..1.0).contains(far)), "{farthest:?}");
    for (ratio, k3) in rounded.metric(MISMATCH[1]).iter().zip(rounded.metric(MISMATCH[2])) {
        assert!((ratio - 1.0).abs() < 0.02 && (1e-9..1e-2).contains(&k3), "{ratio} {k3}");
    }
    let said = folder.train("said", &args("--set rollout.dtype=f32"));
    said.assert_same(&same);
}

#[test]
fn a_run_that_samples_in_bf16_goes_on_bit_for_bit() {
    let folder = Folder::new();
    let whole = folder.assert_resumes(&args("--set rollout.dtype=bf16 --set train.save_steps=2"), [2]);
    let config = std::fs::read_to_string(whole.path().join("config.toml")).unwrap();
    assert!(config.contains("dtype = \"bf16\""), "{config}");
}

#[test]
fn truncation_and_temperature_are_a_mismatch_too() {
    let folder = Folder::new();
    for (number, extra) in
        ["--set rollout.top_k=3", "--set rollout.top_p=0.8", "--set rollout.temperature=1.2"].into_iter().enumerate()
    {
        let run = folder.train(&format!("run{number}"), &args(extra));
        let [farthest, ratio] = [MISMATCH[0], "sampling/importance_sampling_ratio/max"].map(|name| run.metric(name));
        assert!(farthest.len() == 4 && farthest.iter().all(|far| *far > 1e-3), "{extra}: {farthest:?}");
        // A truncated distribution gives what is left more probability, the whole one never more.
        let truncated = extra.contains("top");
        assert!(ratio.iter().all(|ratio| truncated == (*ratio < 1.001)), "{extra}: {ratio:?}");
    }
}

#[test]
fn dtypes_that_there_are_not() {
    assert_snapshot!(refused("--set rollout.dtype=fp16"), @"`[rollout]` of `--set`: unknown variant `fp16`, expected `f32` or `bf16`, in `dtype`");
}
