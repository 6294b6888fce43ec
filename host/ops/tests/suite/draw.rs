use host_ops::{argmax, pick};

#[test]
fn picking_inverts_the_cumulative_distribution() {
    let weights = [1.0, 0.0, 2.0, 1.0];
    assert_eq!(pick(&weights, 0.0), 0);
    assert_eq!(pick(&weights, 0.2499), 0);
    assert_eq!(pick(&weights, 0.25), 2);
    assert_eq!(pick(&weights, 0.75), 3);
    assert_eq!(pick(&weights, 1.0 - f64::EPSILON / 2.0), 3);
    assert_eq!(pick(&[1.0, 0.0], 1.0 - f64::EPSILON / 2.0), 0);
}

#[test]
fn picking_among_many_inverts_the_cumulative_distribution() {
    let weights: Vec<f64> = (0..5000).map(|place| f64::from(place * 7919 % 5)).collect();
    let total: f64 = weights.iter().sum();
    for target in 0..total as usize {
        let place = pick(&weights, (target as f64 + 0.5) / total);
        let before: f64 = weights[..place].iter().sum();
        assert!(
            before <= target as f64 && (target as f64) < before + weights[place],
            "{target} {place}"
        );
    }
    let mut only = vec![0.0; 5000];
    only[4321] = 0.3;
    assert_eq!(
        [0.0, 0.5, 1.0 - f64::EPSILON / 2.0].map(|uniform| pick(&only, uniform)),
        [4321; 3]
    );
}

#[test]
fn argmax_takes_the_first_of_equals_and_nan_first_of_all() {
    let cases: [(&[f32], u32); 6] = [
        (&[1.0, 3.0, 3.0, 2.0], 1),
        (&[-0.0, 0.0], 0),
        (&[f32::NEG_INFINITY; 2], 0),
        (&[1.0, f32::INFINITY], 1),
        (&[5.0, f32::NAN, 9.0, f32::NAN], 1),
        (&[2.0], 0),
    ];
    for (logits, largest) in cases {
        assert_eq!(argmax(logits), largest, "{logits:?}");
    }
}
