use candle_core::{DType, Device, Tensor};
use half::bf16;
use host_ops::parts::{narrow, widen};
use host_ops::round_by_chance;

#[test]
fn rounding_is_to_the_nearest() {
    let mut values: Vec<f32> = (0..1 << 20)
        .map(|bits: u32| f32::from_bits(bits << 12 | 0x7ff))
        .collect();
    values.extend([
        0.0,
        -0.0,
        1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::NAN,
    ]);
    values.extend([0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x7f80_0001].map(f32::from_bits));
    for (found, value) in narrow(&values).into_iter().zip(&values) {
        assert_eq!(
            found.to_bits(),
            bf16::from_f32(*value).to_bits(),
            "{value:e}"
        );
    }
    let x = Tensor::full(1.001_f32, 1 << 16, &Device::Cpu).unwrap();
    let mean = |key| {
        round_by_chance(&x, key)
            .unwrap()
            .to_dtype(DType::F64)
            .unwrap()
            .mean_all()
            .unwrap()
    };
    for key in [0, 1, 77] {
        let mean = mean(key).to_scalar::<f64>().unwrap();
        assert!((mean - 1.001).abs() < 1e-4, "{mean}");
    }
    let back = narrow(&widen(&[bf16::ONE, bf16::MIN]));
    assert_eq!(back, [bf16::ONE, bf16::MIN]);
}
