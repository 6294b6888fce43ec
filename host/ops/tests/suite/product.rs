use candle_core::{DType, Device, Tensor};
use host_ops::parts::Instructions;
use host_ops::testing::INSTRUCTIONS;
use host_ops::{Streamed, product, product_of_rows, products_of_few_rows};

fn of(shape: (usize, usize), step: f32, dtype: DType) -> Tensor {
    let values = (0..shape.0 * shape.1)
        .map(|i| (i as f32 * step).sin())
        .collect::<Vec<f32>>();
    Tensor::from_vec(values, shape, &Device::Cpu)
        .unwrap()
        .to_dtype(dtype)
        .unwrap()
}

fn rounded(x: &Tensor) -> Tensor {
    x.to_dtype(DType::BF16)
        .unwrap()
        .to_dtype(DType::F32)
        .unwrap()
}

fn bits(x: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = x
        .to_dtype(DType::F32)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// NaN if any number is.
fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    let differences: Vec<f32> = (a - b)
        .unwrap()
        .abs()
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap();
    differences
        .into_iter()
        .fold(0.0, |largest, x| if x <= largest { largest } else { x })
}

/// Runs `work` with each of this machine's instructions, and with emulated tiles and vectors.
fn with_each(work: impl Fn(&str)) {
    for (name, instructions) in Instructions::available().into_iter().chain([
        ("emulated", Instructions::Emulated),
        ("emulated vectors", Instructions::EmulatedVectors),
    ]) {
        INSTRUCTIONS.set(Some(instructions));
        work(name);
    }
    INSTRUCTIONS.set(None);
}

/// Tests all memory layouts of the operands, and both dtypes.
#[test]
fn products_in_bf16_equal_products_of_rounded_numbers() {
    with_each(|name| {
        for (rows, inner, columns) in [
            (1, 1, 1),
            (2, 7, 5),
            (13, 64, 97),
            (50, 130, 33),
            (40, 1_100, 40),
            (24, 515, 64),
            (3, 4_500, 8),
        ] {
            for dtypes in [
                [DType::BF16, DType::BF16],
                [DType::BF16, DType::F32],
                [DType::F32, DType::BF16],
            ] {
                let (a, b) = (
                    of((rows, inner), 0.7, dtypes[0]),
                    of((inner, columns), 0.3, dtypes[1]),
                );
                let expected = rounded(&a).matmul(&rounded(&b)).unwrap();
                let found = product(&a, &b, DType::F32).unwrap();
                let difference = largest_difference(&found, &expected);
                let what = format!("{rows} x {inner} x {columns}, {name}");
                assert!(
                    difference <= 1e-5 * (inner as f32).sqrt(),
                    "{what}: {difference:e}"
                );
                let in_bf16 = product(&a, &b, DType::BF16).unwrap();
                assert_eq!(
                    (in_bf16.dtype(), bits(&in_bf16)),
                    (DType::BF16, bits(&rounded(&found))),
                    "{what}"
                );
                if name == "f32" {
                    continue;
                }
                // In tiles, the order of memory and the number of rows change no bit.
                let turned = |x: &Tensor| x.t().unwrap().contiguous().unwrap().t().unwrap();
                for (a, b) in [
                    (turned(&a), b.clone()),
                    (a.clone(), turned(&b)),
                    (turned(&a), turned(&b)),
                ] {
                    assert_eq!(
                        bits(&product(&a, &b, DType::F32).unwrap()),
                        bits(&found),
                        "{what}"
                    );
                }
                let some = |x: &Tensor| x.narrow(0, rows / 2, rows - rows / 2).unwrap();
                assert_eq!(
                    bits(&product(&some(&a), &b, DType::F32).unwrap()),
                    bits(&some(&found)),
                    "{what}"
                );
                let batch = |x: &Tensor| Tensor::stack(&[x, x, x], 0).unwrap();
                let products = product(&batch(&a), &batch(&b), DType::F32).unwrap();
                assert_eq!(bits(&products.get(1).unwrap()), bits(&found), "{what}");
            }
        }
    });
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for (name, instructions) in Instructions::available() {
        for inner in [1_300, 5_000] {
            let (a, b) = (
                of((520, inner), 0.7, DType::BF16),
                of((inner, 520), 0.3, DType::BF16),
            );
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                let work = || {
                    INSTRUCTIONS.set(Some(instructions));
                    bits(&product(&a, &b, DType::F32).unwrap())
                };
                pool.install(work)
            };
            assert!(with(1) == with(7), "{inner}, {name}");
        }
    }
}

fn streamed(weight: &Tensor, dtype: DType) -> Streamed {
    Streamed::new(weight, dtype)
        .unwrap()
        .expect("it is on the CPU")
}

#[test]
fn products_of_few_rows_in_f32_equal_the_matrix_librarys() {
    for (rows, inner, outputs) in [
        (2, 7, 5),
        (31, 64, 97),
        (33, 130, 300),
        (128, 65, 12),
        (5, 1, 1),
    ] {
        let (x, weight) = (
            of((rows, inner), 0.7, DType::F32),
            of((outputs, inner), 0.3, DType::F32),
        );
        let expected = x.matmul(&weight.t().unwrap()).unwrap();
        let weight = streamed(&weight, DType::F32);
        let [found, again] = products_of_few_rows(&x, [&weight, &weight], DType::F32).unwrap();
        assert_eq!(bits(&found), bits(&again));
        assert!(
            largest_difference(&found, &expected) <= 1e-5 * (inner as f32).sqrt(),
            "{rows} x {inner} x {outputs}"
        );
    }
}

#[test]
fn products_of_few_rows_in_bf16_equal_those_of_many() {
    with_each(|name| {
        for (rows, inner, outputs) in [
            (2, 8, 5),
            (31, 64, 96),
            (33, 130, 300),
            (128, 96, 32),
            (5, 3, 4),
            (2, 32, 32),
            (40, 1_312, 64),
        ] {
            let (x, weight) = (
                of((rows, inner), 0.7, DType::BF16),
                of((outputs, inner), 0.3, DType::BF16),
            );
            let expected = product(&x, &weight.t().unwrap(), DType::F32).unwrap();
            let largest = expected
                .abs()
                .unwrap()
                .max_all()
                .unwrap()
                .to_scalar::<f32>()
                .unwrap();
            let wide = weight.to_dtype(DType::F32).unwrap();
            for (weight, out, error) in [
                (&weight, DType::BF16, 256.0),
                (&wide, DType::BF16, 256.0),
                (&wide, DType::F32, 1e5),
            ] {
                let weight = streamed(weight, DType::BF16);
                let other = streamed(&of((7, inner), 0.9, DType::BF16), DType::BF16);
                let [_, found] = products_of_few_rows(&x, [&other, &weight], out).unwrap();
                assert_eq!((found.dtype(), found.dims()), (out, expected.dims()));
                let difference =
                    largest_difference(&found.to_dtype(DType::F32).unwrap(), &expected);
                assert!(
                    difference <= largest / error,
                    "{rows} x {inner} x {outputs}, {name}, {out:?}: {difference:e}"
                );
            }
        }
    });
}

#[test]
fn refuses_sizes_that_do_not_fit() {
    let (a, b) = (of((2, 3), 0.7, DType::BF16), of((4, 5), 0.3, DType::BF16));
    with_each(|_| {
        assert!(product(&a, &b, DType::F32).is_err());
        let weight = streamed(&of((5, 4), 0.3, DType::BF16), DType::BF16);
        assert!(products_of_few_rows(&a, [&weight], DType::BF16).is_err());
    });
}

/// A row is multiplied alone, with 2, 7, 33 and 200 others, with weights in either memory order and
/// with streamed ones: of few and many columns, and with sums of one part and of several.
#[test]
fn a_rows_bits_do_not_depend_on_other_rows() {
    const MOST: usize = 201;
    with_each(|name| {
        for (inner, columns) in [
            (1, 40),
            (2, 300),
            (8, 576),
            (16, 1),
            (64, 1),
            (64, 8),
            (64, 15),
            (600, 8),
            (513, 70),
            (1_100, 300),
        ] {
            for dtype in [DType::F32, DType::BF16] {
                let (x, weight) = (
                    of((MOST, inner), 0.7, dtype),
                    of((columns, inner), 0.3, dtype),
                );
                let (turned, streamed) = (weight.t().unwrap(), streamed(&weight, dtype));
                let across = turned.contiguous().unwrap();
                let expected = bits(&product_of_rows(&x, &turned, DType::F32).unwrap());
                for rows in [1, 3, 8, 34, MOST] {
                    let from = (MOST - rows) / 2;
                    let some = x.narrow(0, from, rows).unwrap();
                    let expected = &expected[from * columns..][..rows * columns];
                    for weight in [&turned, &across] {
                        let found = bits(&product_of_rows(&some, weight, DType::F32).unwrap());
                        assert!(
                            found == expected,
                            "{rows} x {inner} x {columns}, {dtype:?}, {name}"
                        );
                    }
                    let [found] = products_of_few_rows(&some, [&streamed], DType::F32).unwrap();
                    assert!(
                        bits(&found) == expected,
                        "{rows} x {inner} x {columns}, {dtype:?}, {name}, streamed"
                    );
                }
            }
        }
    });
}
