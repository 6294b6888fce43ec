use candle_core::{Device, Tensor};
use host_ops::{Truncation, nucleus, truncate};

#[test]
fn the_nucleus_is_the_smallest_set_that_reaches_its_share() {
    let weights = [0.5, 0.3, 0.15, 0.05];
    assert_eq!(nucleus(&weights, 0.4), 1);
    assert_eq!(nucleus(&weights, 0.5), 1);
    assert_eq!(nucleus(&weights, 0.51), 2);
    assert_eq!(nucleus(&weights, 0.8), 2);
    assert_eq!(nucleus(&weights, 1.0), 4);
}

#[test]
fn truncation_keeps_likely_tokens_and_the_target() {
    let logits = Tensor::new(
        &[[0.0f32, 2.0, 1.0, -1.0], [3.0, 3.0, 0.0, 1.0]],
        &Device::Cpu,
    )
    .unwrap();
    let left = |targets: [u32; 2], top_k, top_p| {
        let targets = Tensor::new(&targets, &Device::Cpu).unwrap();
        let rows = truncate(
            &logits,
            &targets,
            Truncation {
                temperature: 1.0,
                top_k,
                top_p,
            },
        )
        .unwrap();
        rows.to_vec2::<f32>()
            .unwrap()
            .into_iter()
            .map(|row| row.iter().map(|z| *z > -1e29).collect::<Vec<_>>())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        left([1, 0], 2, 1.0),
        [[false, true, true, false], [true, true, false, false]]
    );
    assert_eq!(
        left([3, 2], 2, 1.0),
        [[false, true, true, true], [true, true, true, false]]
    );
    assert_eq!(
        left([1, 0], 0, 0.6),
        [[false, true, false, false], [true, true, false, false]]
    );
    assert_eq!(
        left([1, 0], 3, 0.9),
        [[false, true, true, false], [true, true, false, false]]
    );
    assert_eq!(left([0, 0], 0, 1.0), [[true; 4], [true; 4]]);
}
