//! Tests that keys are refused when out of range.

use capo_plugin::Image;
use insta::assert_snapshot;

#[test]
fn what_is_out_of_range_is_refused() {
    let cases = [
        ("masks.dppo-tv", r#"{"clip_ratio_low": -0.1}"#),
        ("masks.dppo-kl", r#"{"clip_ratio_high": -1}"#),
        ("masks.dppo-kl", r#"{"policies": "old/new"}"#),
        ("masks.ipo", r#"{"ipo_threshold": -1}"#),
        ("masks.icepop", r#"{"alpha": 6}"#),
        ("masks.mis", r#"{"level": "batch"}"#),
        ("masks.mis", r#"{"veto_threshold": -1}"#),
        ("masks.trm", r#"{"rollout_rs": "seq_max_k1"}"#),
        ("masks.trm", r#"{"rollout_rs_threshold": 0}"#),
        ("masks.trm", r#"{"rollout_rs": "seq_mean_k1"}"#),
        ("masks.trm", r#"{"rollout_rs_threshold_lower": 0.5}"#),
        ("masks.trm", r#"{"rollout_rs": "token_k1", "rollout_rs_threshold": 1.5, "rollout_rs_threshold_lower": 2}"#),
        ("masks.off-policy-sequence", r#"{"off_policy_mask_threshold": -0.5}"#),
        ("masks.clip-cov", r#"{"clip_cov_lb": 6}"#),
        ("masks.kl-cov", r#"{"kl_cov_ratio": 2}"#),
        ("masks.m2po", r#"{"m2_threshold": 0}"#),
        ("masks.entropy-quantile", r#"{"top_entropy_quantile": 20}"#),
        ("masks.ratio-range", r#"{"low": 1.3}"#),
        ("masks.probability-floor", r#"{"min_probability": 5}"#),
        ("masks.probability-quantile", r#"{"share": -0.1}"#),
        ("masks.random", r#"{"share": 1.5}"#),
        ("masks.truncated", r#"{"share": 1.5}"#),
        ("masks.ipo", r#"{"target_rejection_rate": 2}"#),
        ("masks.ipo", r#"{"target_rejection_rate": 0.02, "ipo_threshold": 0.1}"#),
        ("masks.dppo-tv", r#"{"target_rejection_rate": 0.02, "clip_ratio_low": 0.1}"#),
        ("masks.random", r#"{"target_rejection_rate": 0.02}"#),
    ];
    let weights = [
        ("masks.tis", r#"{"rollout_is_threshold": 0}"#),
        ("masks.tis", r#"{"rollout_is_threshold_lower": 3}"#),
        ("masks.drpo", r#"{"delta": 0}"#),
        ("masks.low-probability", r#"{"alpha": 1.1}"#),
    ];
    let masks = cases.map(|(id, json)| format!("{id}: {}", Image::own().mask(id, json).err().unwrap()));
    let weights = weights.map(|(id, json)| format!("{id}: {}", Image::own().weight(id, json).err().unwrap()));
    assert_snapshot!(masks.join("\n"));
    assert_snapshot!(weights.join("\n"), @"
    masks.tis: `rollout_is_threshold` is 0 (it must be finite and above 0)
    masks.tis: `rollout_is_threshold_lower` is 3, above `rollout_is_threshold`, 2 (no token would be kept)
    masks.drpo: `delta` is 0 (it must be finite and above 0)
    masks.low-probability: `alpha` is 1.1 (use 0 to 1)
    ");
}
