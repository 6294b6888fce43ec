//! Tests that keys are refused when out of range.

use capo_plugin::Image;
use capo_plugin::testing::Fixture;
use insta::assert_snapshot;

/// The lines of `refused.txt`, each a point, an id and keys, with the error message below.
#[test]
fn what_is_out_of_range_is_refused() {
    let refused = |line: &str| {
        let (point, component) = line.split_once(' ').unwrap();
        let (id, keys) = component.split_once(' ').unwrap();
        let error = match point {
            "weight" => Image::own().weight(id, keys).err(),
            _ => Image::own().mask(id, keys).err(),
        };
        format!("{line}\n    {}\n", error.unwrap())
    };
    assert_snapshot!(
        include_str!("refused.txt")
            .lines()
            .map(refused)
            .collect::<String>()
    );
}

/// Decisions about tokens with the ratios 1, e⁻², e⁹⁹, 0 and NaN. A key that `f32` cannot hold is
/// no limit.
#[test]
fn numbers_beyond_their_range_are_compared() {
    let (of, against) = (
        [-1.0, -3.0, -1.0, f32::NEG_INFINITY, f32::NEG_INFINITY],
        [-1.0, -1.0, -100.0, -1.0],
    );
    let against = [&against[..], &[f32::NEG_INFINITY]].concat();
    let fixture = Fixture::new(1, 5)
        .logps(&of)
        .old_logps(&of)
        .sampler_logps(&against);
    for (id, keys, kept) in [
        (
            "masks.mis",
            r#"{"level": "token", "clip_min": 0.5, "clip_max": 1e38}"#,
            [1, 0, 1, 0, 0],
        ),
        (
            "masks.mis",
            r#"{"level": "token", "clip_min": 0.5, "clip_max": 1e39}"#,
            [1, 0, 1, 0, 0],
        ),
        (
            "masks.mis",
            r#"{"level": "token", "veto_threshold": 0.5, "clip_max": 1e39}"#,
            [0; 5],
        ),
        ("masks.icepop", r#"{"beta": 1e38}"#, [1, 0, 0, 0, 0]),
        ("masks.icepop", r#"{"beta": 1e39}"#, [1, 0, 1, 0, 0]),
        (
            "masks.ratio-range",
            r#"{"low": 0.5, "high": 1e39, "policies": "old/sampler"}"#,
            [1, 0, 1, 0, 0],
        ),
        (
            "masks.probability-floor",
            r#"{"min_probability": 1e-300}"#,
            [1, 1, 1, 0, 0],
        ),
        (
            "masks.probability-floor",
            r#"{"min_probability": 0}"#,
            [1; 5],
        ),
        ("masks.m2po", "{}", [1, 0, 0, 0, 0]),
    ] {
        assert_eq!(
            fixture.mask(&mut super::mask(id, keys)).unwrap().token_mask,
            kept,
            "{id} {keys}"
        );
    }
}

#[test]
fn the_readme_has_the_keys() {
    capo_plugin::testing::key_tables("README.md").unwrap();
}
