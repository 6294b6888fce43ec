use candle_core::{Device, Tensor};
use host_ops::products_of_few_rows;

#[test]
fn the_product_is_that_of_the_matrix_library() {
    for (rows, inner, outputs) in [(2, 7, 5), (31, 64, 97), (33, 130, 300), (128, 65, 12), (5, 1, 1)] {
        let of = |count: usize, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
        let x = Tensor::from_vec(of(rows * inner, 0.7), (rows, inner), &Device::Cpu).unwrap();
        let weight = Tensor::from_vec(of(outputs * inner, 0.3), (outputs, inner), &Device::Cpu).unwrap();
        let expected = x.matmul(&weight.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
        let [found, again] = products_of_few_rows(&x, [&weight, &weight]).unwrap().map(|y| y.to_vec2::<f32>().unwrap());
        assert_eq!(found, again);
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() <= 1e-5 * (inner as f32).sqrt(), "{rows} x {inner} x {outputs}");
        }
    }
}
