use host_ops::pick;

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
