use candle_core::{DType, Device, Tensor};
use host_ops::parts::product_of_few_rows_in_bf16;
use host_ops::{product, products_of_few_rows};

fn of(shape: (usize, usize), step: f32, dtype: DType) -> Tensor {
    let values = (0..shape.0 * shape.1).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn rounded(x: &Tensor) -> Tensor {
    x.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap()
}

fn bits(x: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// NaN if any number is.
fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    let differences: Vec<f32> = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().to_vec1().unwrap();
    differences.into_iter().fold(0.0, |largest, x| if x <= largest { largest } else { x })
}

/// Tests all memory layouts of the operands, and both dtypes.
#[test]
fn products_are_those_of_the_rounded_numbers() {
    for (rows, inner, columns) in [(1, 1, 1), (2, 7, 5), (13, 64, 97), (50, 130, 33), (128, 1_100, 40), (24, 515, 64)] {
        for dtypes in [[DType::BF16, DType::BF16], [DType::BF16, DType::F32], [DType::F32, DType::BF16]] {
            let (a, b) = (of((rows, inner), 0.7, dtypes[0]), of((inner, columns), 0.3, dtypes[1]));
            let expected = rounded(&a).matmul(&rounded(&b)).unwrap();
            let found = product(&a, &b, DType::F32).unwrap();
            let difference = largest_difference(&found, &expected);
            assert!(difference <= 1e-5 * (inner as f32).sqrt(), "{rows} x {inner} x {columns}: {difference:e}");
            let turned = |x: &Tensor| x.t().unwrap().contiguous().unwrap().t().unwrap();
            for (a, b) in [(turned(&a), b.clone()), (a.clone(), turned(&b)), (turned(&a), turned(&b))] {
                assert_eq!(bits(&product(&a, &b, DType::F32).unwrap()), bits(&found));
            }
            let some = a.narrow(0, rows / 2, rows - rows / 2).unwrap();
            let of_some = found.narrow(0, rows / 2, rows - rows / 2).unwrap();
            assert_eq!(bits(&product(&some, &b, DType::F32).unwrap()), bits(&of_some));
            let in_bf16 = product(&a, &b, DType::BF16).unwrap();
            assert_eq!((in_bf16.dtype(), bits(&in_bf16)), (DType::BF16, bits(&rounded(&found))));
        }
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (a, b) = (of((200, 1_300), 0.7, DType::BF16), of((1_300, 70), 0.3, DType::BF16));
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        bits(&pool.install(|| product(&a, &b, DType::F32)).unwrap())
    };
    assert_eq!(with(1), with(7));
}

#[test]
fn few_rows_in_f32_are_those_of_the_matrix_library() {
    for (rows, inner, outputs) in [(2, 7, 5), (31, 64, 97), (33, 130, 300), (128, 65, 12), (5, 1, 1)] {
        let (x, weight) = (of((rows, inner), 0.7, DType::F32), of((outputs, inner), 0.3, DType::F32));
        let expected = x.matmul(&weight.t().unwrap()).unwrap();
        let [found, again] = products_of_few_rows(&x, [&weight, &weight]).unwrap();
        assert_eq!(bits(&found), bits(&again));
        assert!(largest_difference(&found, &expected) <= 1e-5 * (inner as f32).sqrt(), "{rows} x {inner} x {outputs}");
    }
}

#[test]
fn few_rows_have_the_same_bits() {
    for (rows, inner, outputs) in
        [(2, 8, 5), (31, 64, 97), (33, 130, 300), (128, 66, 12), (5, 3, 4), (1, 2, 1), (40, 1_300, 50)]
    {
        let (x, weight) = (of((rows, inner), 0.7, DType::BF16), of((outputs, inner), 0.3, DType::BF16));
        let expected = product(&x, &weight.t().unwrap(), DType::BF16).unwrap();
        assert_eq!(bits(&product_of_few_rows_in_bf16(&x, &weight).unwrap()), bits(&expected));
    }
}

#[test]
fn sizes_that_do_not_fit_are_an_error() {
    let (a, b) = (of((2, 3), 0.7, DType::BF16), of((4, 5), 0.3, DType::BF16));
    assert!(product(&a, &b, DType::F32).is_err());
    assert!(product_of_few_rows_in_bf16(&a, &of((5, 4), 0.3, DType::BF16)).is_err());
}
