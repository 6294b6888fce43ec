use host_ops::parts::{dot, exp_f32, exp_f64, maximum, sum};

#[test]
fn exp_is_within_a_few_units_in_the_last_place() {
    let mut worst = 0.0f64;
    for step in 0..200_000 {
        let x = -87.0 + step as f32 * (175.0 / 200_000.0);
        let exact = f64::from(x).exp();
        worst = worst.max((f64::from(exp_f32(x)) - exact).abs() / exact);
    }
    assert!(worst < 2.5e-7, "relative error {worst:e}");
    assert!(exp_f32(f32::NAN).is_nan());
    assert_eq!(exp_f32(0.0), 1.0);
}

#[test]
fn exp_of_negative_numbers_is_as_exact_as_the_librarys() {
    let worst = (0..200_000).map(|step| -708.0 + f64::from(step) * (708.0 / 200_000.0));
    let worst = worst
        .map(|x| (exp_f64(x) / x.exp() - 1.0).abs())
        .fold(0.0, f64::max);
    assert!(worst < 4.5e-16, "relative error {worst:e}");
    assert_eq!(
        [0.0, -709.0, f64::NEG_INFINITY].map(exp_f64),
        [1.0, 0.0, 0.0]
    );
    assert!(exp_f64(f64::NAN).is_nan());
}

#[test]
fn reductions_agree_with_plain_loops() {
    for len in [1, 7, 8, 9, 31, 64, 100] {
        let a: Vec<f64> = (0..len).map(|i| (i as f64 * 0.7).sin()).collect();
        let b: Vec<f64> = (0..len).map(|i| (i as f64 * 0.3).cos()).collect();
        let plain: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        assert!((dot(&a, &b) - plain).abs() < 1e-12);
        assert!((sum(&a) - a.iter().sum::<f64>()).abs() < 1e-12);
        assert_eq!(maximum(&a), a.iter().copied().fold(f64::MIN, f64::max));
    }
}
