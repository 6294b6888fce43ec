//! Declarations of masks and weights about their decisions, and tests that the declarations hold.

use capo_plugin::testing::{Fixture, batches};
use capo_plugin::{Image, Point, Traits};

use super::{mask, weight};

/// Tables with which each token is decided alone.
const ALONE: [(Point, &str, &str); 17] = [
    (Point::Mask, "masks.dppo-tv", "{}"),
    (Point::Mask, "masks.dppo-kl", "{}"),
    (Point::Mask, "masks.dppo-topk-tv", r#"{"clip_ratio": 0.01}"#),
    (Point::Mask, "masks.dppo-topk-kl", r#"{"clip_ratio": 0.01}"#),
    (Point::Mask, "masks.ipo", r#"{"ipo_threshold": 0.002}"#),
    (
        Point::Mask,
        "masks.icepop",
        r#"{"alpha": 0.99, "beta": 1.01}"#,
    ),
    (
        Point::Mask,
        "masks.mis",
        r#"{"level": "token", "clip_max": 1.01}"#,
    ),
    (
        Point::Mask,
        "masks.trm",
        r#"{"rollout_rs": "token_k1", "rollout_rs_threshold": 1.01}"#,
    ),
    (Point::Mask, "masks.truncated", "{}"),
    (Point::Mask, "masks.ratio-range", "{}"),
    (
        Point::Mask,
        "masks.probability-floor",
        r#"{"min_probability": 0.3}"#,
    ),
    (
        Point::Mask,
        "masks.probability-floor",
        r#"{"target_rejection_rate": 0.2}"#,
    ),
    (
        Point::Mask,
        "masks.ipo",
        r#"{"target_rejection_rate": 0.2}"#,
    ),
    (Point::Weight, "masks.tis", "{}"),
    (
        Point::Weight,
        "masks.tis",
        r#"{"rollout_is_threshold_lower": 0.99, "rollout_is_threshold": 1.01}"#,
    ),
    (Point::Weight, "masks.drpo", "{}"),
    (Point::Weight, "masks.low-probability", "{}"),
];

/// Tables with which tokens are decided together.
const TOGETHER: [(Point, &str, &str); 13] = [
    (Point::Mask, "masks.mis", "{}"),
    (
        Point::Mask,
        "masks.mis",
        r#"{"level": "token", "veto_threshold": 0.5}"#,
    ),
    (Point::Mask, "masks.trm", "{}"),
    (Point::Mask, "masks.off-policy-sequence", "{}"),
    (Point::Mask, "masks.m2po", "{}"),
    (Point::Mask, "masks.clip-cov", "{}"),
    (Point::Mask, "masks.kl-cov", "{}"),
    (Point::Mask, "masks.entropy-quantile", "{}"),
    (Point::Mask, "masks.probability-quantile", "{}"),
    (Point::Mask, "masks.random", "{}"),
    (Point::Weight, "masks.tis", r#"{"rollout_is": "sequence"}"#),
    (Point::Weight, "masks.tis", r#"{"rollout_is": "geometric"}"#),
    (
        Point::Weight,
        "masks.tis",
        r#"{"rollout_is_batch_normalize": true}"#,
    ),
];

fn declared((point, id, json): (Point, &str, &str)) -> Traits {
    if point == Point::Mask {
        mask(id, json).traits()
    } else {
        weight(id, json).traits()
    }
}

fn decided((point, id, json): (Point, &str, &str), batch: &Fixture) -> Vec<f32> {
    match point {
        Point::Mask => batch
            .mask(&mut mask(id, json))
            .expect(id)
            .token_mask
            .into_iter()
            .map(f32::from)
            .collect(),
        _ => batch.weigh(&mut weight(id, json)).expect(id).weights,
    }
}

#[test]
fn every_component_says_whether_it_decides_token_by_token() {
    for one in ALONE {
        let all = Traits::TOKEN_WISE | Traits::SUMS_RANKS | Traits::NO_OPTIMIZER;
        assert_eq!(declared(one), all, "{one:?}");
    }
    for one in TOGETHER {
        assert_eq!(declared(one), Traits::NO_OPTIMIZER, "{one:?}");
    }
    for point in [Point::Mask, Point::Weight] {
        for component in Image::own().components(point).unwrap() {
            let id = component.id.as_str();
            assert!(
                ALONE
                    .iter()
                    .chain(&TOGETHER)
                    .any(|(_, known, _)| *known == id),
                "`{id}` is in neither table"
            );
        }
    }
}

#[test]
fn what_decides_token_by_token_decides_parts_as_the_whole() {
    for one in ALONE {
        for (name, batch) in batches() {
            let rows = batch.batch().dims.completions as usize;
            let parts = (0..rows).flat_map(|row| decided(one, &batch.part(row..row + 1)));
            assert_eq!(
                parts.collect::<Vec<_>>(),
                decided(one, &batch),
                "{one:?} on {name}"
            );
        }
    }
}
