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
    assert_snapshot!(masks.join("\n"), @"
    masks.dppo-tv: `clip_ratio_low` is -0.1 (it must be 0 or more)
    masks.dppo-kl: `clip_ratio_high` is -1 (it must be 0 or more)
    masks.dppo-kl: unknown variant `old/new`, expected one of `trainer/sampler`, `trainer/old`, `old/sampler`
    masks.ipo: `ipo_threshold` is -1 (it must be 0 or more)
    masks.icepop: `alpha` is 6, above `beta`, 5 (no token would be kept)
    masks.mis: unknown variant `batch`, expected one of `token`, `sequence`, `geometric`
    masks.mis: `veto_threshold` is -1 (it must be 0 or more)
    masks.trm: `rollout_rs` is `seq_max_k1` (use `token`, `seq_sum`, `seq_mean` or `seq_max`, then `_k1`, `_k2` or `_k3`; there is no `seq_max_k1`)
    masks.trm: `rollout_rs_threshold` is 0 (it must be finite and above 0)
    masks.trm: `rollout_rs_threshold` is 0.01, but of `seq_mean_k1` it is the largest ratio, and every token would be dropped (set it above 1, such as 1.001, or give `rollout_rs_threshold_lower` too)
    masks.trm: `rollout_rs_threshold_lower` is 0.5, but `seq_mean_k3` has no lower bound (leave it out)
    masks.trm: `rollout_rs_threshold_lower` is 2, above `rollout_rs_threshold`, 1.5 (no token would be kept)
    masks.off-policy-sequence: `off_policy_mask_threshold` is -0.5 (it must be 0 or more)
    masks.clip-cov: `clip_cov_lb` is 6, above `clip_cov_ub`, 5 (no token would be kept)
    masks.kl-cov: `kl_cov_ratio` is 2 (use 0 to 1)
    masks.m2po: `m2_threshold` is 0 (it must be finite and above 0)
    masks.entropy-quantile: `top_entropy_quantile` is 20 (use 0 to 1)
    masks.ratio-range: `low` is 1.3, above `high`, 1.2 (no token would be kept)
    masks.probability-floor: `min_probability` is 5 (use 0 to 1)
    masks.probability-quantile: `share` is -0.1 (use 0 to 1)
    masks.random: `share` is 1.5 (use 0 to 1)
    masks.truncated: unknown key `share` (it has no keys)
    masks.ipo: `target_rejection_rate` is 2 (it must lie between 0 and 1)
    masks.ipo: `target_rejection_rate` and `ipo_threshold` are both given (keep one)
    masks.dppo-tv: `target_rejection_rate` and `clip_ratio_low` are both given (keep one)
    masks.random: unknown key `target_rejection_rate` (known: `share`)
    ");
    assert_snapshot!(weights.join("\n"), @"
    masks.tis: `rollout_is_threshold` is 0 (it must be finite and above 0)
    masks.tis: `rollout_is_threshold_lower` is 3, above `rollout_is_threshold`, 2 (no token would be kept)
    masks.drpo: `delta` is 0 (it must be finite and above 0)
    masks.low-probability: `alpha` is 1.1 (use 0 to 1)
    ");
}
