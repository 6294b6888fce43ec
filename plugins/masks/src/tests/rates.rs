//! Tests of thresholds that follow the run.

use capo_plugin::Traits;
use capo_plugin::testing::{self, Fixture, Masked};

use super::mask;

/// Every mask with one threshold: its id, keys for token-wise decisions if it has them, and the key
/// of its threshold.
const RATED: [(&str, &str, &str); 14] = [
    ("masks.dppo-tv", "", "clip_ratio"),
    ("masks.dppo-kl", "", "clip_ratio"),
    ("masks.dppo-topk-tv", "", "clip_ratio"),
    ("masks.dppo-topk-kl", "", "clip_ratio"),
    ("masks.ipo", "", "ipo_threshold"),
    ("masks.icepop", r#""alpha": 0.1, "#, "beta"),
    ("masks.mis", r#""level": "token", "#, "clip_max"),
    ("masks.mis", "", "clip_max"),
    (
        "masks.trm",
        r#""rollout_rs": "token_k1", "#,
        "rollout_rs_threshold",
    ),
    (
        "masks.trm",
        r#""rollout_rs": "seq_sum_k3", "#,
        "rollout_rs_threshold",
    ),
    ("masks.off-policy-sequence", "", "off_policy_mask_threshold"),
    ("masks.ratio-range", "", "high"),
    ("masks.ratio-range", r#""low": 0.1, "#, "high"),
    ("masks.probability-floor", "", "min_probability"),
];
const RATE: f64 = 0.1;

/// A step whose tokens have each moved by a different amount.
fn fixture() -> Fixture {
    let logps: Vec<f32> = (0..96)
        .map(|i| -1.5 + 0.4 * (i as f32 * 1.7).sin())
        .collect();
    let old: Vec<f32> = logps
        .iter()
        .enumerate()
        .map(|(i, logp)| logp + 0.3 * (i as f32 * 2.3).cos())
        .collect();
    let advantages: Vec<f32> = (0..96)
        .map(|i| (i as f32 / 6.0).floor() % 2.0 - 0.5)
        .collect();
    Fixture::new(16, 6)
        .logps(&logps)
        .old_logps(&old)
        .advantages(&advantages)
}

fn rejected(masked: &Masked) -> f64 {
    masked.token_mask.iter().filter(|&&keep| keep == 0).count() as f64
        / masked.token_mask.len() as f64
}

/// After the first step, the threshold of earlier steps decides. A table with this threshold gives
/// the same decisions.
#[test]
fn a_rate_is_met_by_a_threshold_that_a_table_could_give() {
    let fixture = fixture();
    for (id, keys, threshold) in RATED {
        let json = format!("{{{keys}\"target_rejection_rate\": {RATE}}}");
        let mut rated = mask(id, &json);
        let first = fixture.mask(&mut rated).unwrap();
        let alone = rated.traits().contains(Traits::TOKEN_WISE);
        assert_eq!(rejected(&first) > 0.0, !alone, "{id} {keys}");
        fixture
            .step_end(&mut rated, &first.token_mask, true)
            .unwrap();
        let second = fixture.mask(&mut rated).unwrap();
        let found = second.records.number("threshold").unwrap();
        let given = fixture
            .mask(&mut mask(
                id,
                &format!("{{{keys}\"{threshold}\": {found}}}"),
            ))
            .unwrap();
        assert_eq!(given.token_mask, second.token_mask, "{id} {keys}at {found}");
        let rate = rejected(&second);
        let most = if id.contains("topk") {
            RATE
        } else {
            RATE + 0.03
        };
        assert!(
            rate > 0.0 && rate <= most || id.contains("topk"),
            "{id} {keys}: {rate}"
        );
        assert!(rated.load(b"nonsense").is_err());
    }
    assert!(mask("masks.ipo", "{}").save().unwrap().is_empty());
}

#[test]
fn they_keep_the_rules() {
    let tables: Vec<_> = RATED
        .iter()
        .map(|(id, _, _)| (*id, "target_rejection_rate = 0.2"))
        .collect();
    testing::conform(&tables).unwrap();
}
