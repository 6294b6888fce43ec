use candle_core::{DType, Device, Tensor};
use host_ops::parts::{Instructions, by_parts};
use host_ops::testing::INSTRUCTIONS;
use host_ops::{Streamed, matmul, product, products_of_few_rows};

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

/// Runs `work` with each of this machine's instructions, and with emulated tiles.
fn with_each(work: impl Fn(&str)) {
    for (name, instructions) in Instructions::available().into_iter().chain([("emulated", Instructions::Emulated)]) {
        INSTRUCTIONS.set(Some(instructions));
        work(name);
    }
    INSTRUCTIONS.set(None);
}

/// Tests all memory layouts of the operands, and both dtypes.
#[test]
fn products_are_those_of_the_rounded_numbers() {
    with_each(|name| {
        for (rows, inner, columns) in
            [(1, 1, 1), (2, 7, 5), (13, 64, 97), (50, 130, 33), (40, 1_100, 40), (24, 515, 64), (3, 4_500, 8)]
        {
            for dtypes in [[DType::BF16, DType::BF16], [DType::BF16, DType::F32], [DType::F32, DType::BF16]] {
                let (a, b) = (of((rows, inner), 0.7, dtypes[0]), of((inner, columns), 0.3, dtypes[1]));
                let expected = rounded(&a).matmul(&rounded(&b)).unwrap();
                let found = product(&a, &b, DType::F32).unwrap();
                let difference = largest_difference(&found, &expected);
                let what = format!("{rows} x {inner} x {columns}, {name}");
                assert!(difference <= 1e-5 * (inner as f32).sqrt(), "{what}: {difference:e}");
                let in_bf16 = product(&a, &b, DType::BF16).unwrap();
                assert_eq!((in_bf16.dtype(), bits(&in_bf16)), (DType::BF16, bits(&rounded(&found))), "{what}");
                if name == "f32" {
                    continue;
                }
                // In tiles, the order of memory and the number of rows change no bit.
                let turned = |x: &Tensor| x.t().unwrap().contiguous().unwrap().t().unwrap();
                for (a, b) in [(turned(&a), b.clone()), (a.clone(), turned(&b)), (turned(&a), turned(&b))] {
                    assert_eq!(bits(&product(&a, &b, DType::F32).unwrap()), bits(&found), "{what}");
                }
                let some = |x: &Tensor| x.narrow(0, rows / 2, rows - rows / 2).unwrap();
                assert_eq!(bits(&product(&some(&a), &b, DType::F32).unwrap()), bits(&some(&found)), "{what}");
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
        for (inner, dtype) in [(1_300, DType::BF16), (5_000, DType::BF16), (600, DType::F32)] {
            let (a, b) = (of((520, inner), 0.7, dtype), of((inner, 520), 0.3, dtype));
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let work = || {
                    INSTRUCTIONS.set(Some(instructions));
                    bits(&product(&a, &b, DType::F32).unwrap())
                };
                pool.install(work)
            };
            assert!(with(1) == with(7), "{inner} {dtype:?}, {name}");
        }
    }
}

/// Numbers whose magnitudes span 7 decades by row, all 76 of f32, or only what is below the smallest normal one.
fn scaled(shape: (usize, usize), seed: usize, exponent: impl Fn(usize, usize) -> f64) -> Tensor {
    let number = |i: usize| {
        let mantissa = ((i * 7_919 + seed) as f64 * 0.618_033_988_749).fract() - 0.5;
        (mantissa * 10_f64.powf(exponent(i / shape.1, i % shape.1))) as f32
    };
    Tensor::from_vec((0..shape.0 * shape.1).map(number).collect(), shape, &Device::Cpu).unwrap()
}

/// Largest error relative to the sum of the products' magnitudes, but for half of the smallest number in each sum.
fn error(found: &Tensor, a: &Tensor, b: &Tensor) -> f64 {
    let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
    let (exact, sizes) =
        (wide(a).matmul(&wide(b)).unwrap(), wide(a).abs().unwrap().matmul(&wide(b).abs().unwrap()).unwrap());
    let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    let all = flat(&wide(found)).into_iter().zip(flat(&exact)).zip(flat(&sizes));
    let lost = 0.5 * f64::from(f32::from_bits(1)) * a.dim(1).unwrap() as f64;
    all.map(|((found, exact), size)| (found - exact).abs() / (size + lost)).fold(0.0, f64::max)
}

/// The tiles give the same bits as their emulation, and err no more than the matrix library, whatever the scales.
#[test]
fn numbers_of_three_parts_are_as_exact_as_f32() {
    let (rows, inner, columns) = (70, 768, 45);
    type Exponent = fn(usize, usize) -> f64;
    let kinds: [(&str, Exponent, Exponent); 5] = [
        ("ordinary", |_, _| 0.0, |_, _| 0.0),
        ("rows and columns of 7 decades", |row, _| (row % 8) as f64 - 4.0, |_, column| (column % 8) as f64 - 4.0),
        ("numbers of 36 decades", |_, i| (i * 31 % 37) as f64 - 36.0, |i, _| (i * 17 % 37) as f64 - 36.0),
        ("denormal", |_, _| -39.0, |_, _| 0.0),
        ("products that are denormal", |_, _| -20.0, |_, _| -20.0),
    ];
    for (kind, left, right) in kinds {
        let (a, b) = (scaled((rows, inner), 1, left), scaled((inner, columns), 2, right));
        let library = error(&a.matmul(&b).unwrap(), &a, &b);
        let emulated = by_parts(Instructions::Emulated, &a, &b).unwrap().unwrap();
        let found = error(&emulated, &a, &b);
        println!("{kind}: relative error {found:.1e} in three parts, {library:.1e} of the matrix library");
        assert!(found <= library, "{kind}: {found:e} against {library:e}");
        for (name, instructions) in Instructions::available() {
            if instructions.splits() {
                let found = by_parts(instructions, &a, &b).unwrap().unwrap();
                assert!(bits(&found) == bits(&emulated), "{kind}, {name}");
            }
        }
    }
}

/// Numbers that are not finite, or whose sums might not be, are left to the matrix library.
#[test]
fn what_is_not_finite_comes_through() {
    let (a, b) = (of((520, 260), 0.7, DType::F32), of((260, 520), 0.3, DType::F32));
    for (odd, at) in [(f32::NAN, 0), (f32::INFINITY, 77_777), (f32::NEG_INFINITY, 135_199), (1e30, 5)] {
        let mut values: Vec<f32> = a.flatten_all().unwrap().to_vec1().unwrap();
        values[at] = odd;
        let a = Tensor::from_vec(values, a.dims(), &Device::Cpu).unwrap();
        for (name, instructions) in Instructions::available() {
            INSTRUCTIONS.set(Some(instructions));
            for (a, b) in [(&a, &b), (&b, &a)] {
                let (found, expected) = (matmul(a, b).unwrap(), a.matmul(b).unwrap());
                assert!(bits(&found) == bits(&expected), "{odd} at {at}, {name}");
            }
        }
        INSTRUCTIONS.set(None);
    }
    let odd = Tensor::new(&[[f32::NAN]], &Device::Cpu).unwrap();
    assert!(by_parts(Instructions::Emulated, &odd, &odd).unwrap().is_none());
}

fn streamed(weight: &Tensor, dtype: DType) -> Streamed {
    Streamed::new(weight, dtype).unwrap().expect("it is on the CPU")
}

#[test]
fn few_rows_in_f32_are_those_of_the_matrix_library() {
    for (rows, inner, outputs) in [(2, 7, 5), (31, 64, 97), (33, 130, 300), (128, 65, 12), (5, 1, 1)] {
        let (x, weight) = (of((rows, inner), 0.7, DType::F32), of((outputs, inner), 0.3, DType::F32));
        let expected = x.matmul(&weight.t().unwrap()).unwrap();
        let weight = streamed(&weight, DType::F32);
        let [found, again] = products_of_few_rows(&x, [&weight, &weight], DType::F32).unwrap();
        assert_eq!(bits(&found), bits(&again));
        assert!(largest_difference(&found, &expected) <= 1e-5 * (inner as f32).sqrt(), "{rows} x {inner} x {outputs}");
    }
}

#[test]
fn few_rows_in_bf16_are_those_of_the_product() {
    with_each(|name| {
        for (rows, inner, outputs) in
            [(2, 8, 5), (31, 64, 96), (33, 130, 300), (128, 96, 32), (5, 3, 4), (2, 32, 32), (40, 1_312, 64)]
        {
            let (x, weight) = (of((rows, inner), 0.7, DType::BF16), of((outputs, inner), 0.3, DType::BF16));
            let expected = product(&x, &weight.t().unwrap(), DType::F32).unwrap();
            let largest = expected.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            let wide = weight.to_dtype(DType::F32).unwrap();
            for (weight, out, error) in
                [(&weight, DType::BF16, 256.0), (&wide, DType::BF16, 256.0), (&wide, DType::F32, 1e5)]
            {
                let weight = streamed(weight, DType::BF16);
                let other = streamed(&of((7, inner), 0.9, DType::BF16), DType::BF16);
                let [_, found] = products_of_few_rows(&x, [&other, &weight], out).unwrap();
                assert_eq!((found.dtype(), found.dims()), (out, expected.dims()));
                let difference = largest_difference(&found.to_dtype(DType::F32).unwrap(), &expected);
                assert!(difference <= largest / error, "{rows} x {inner} x {outputs}, {name}, {out:?}: {difference:e}");
            }
        }
    });
}

#[test]
fn sizes_that_do_not_fit_are_an_error() {
    let (a, b) = (of((2, 3), 0.7, DType::BF16), of((4, 5), 0.3, DType::BF16));
    with_each(|_| {
        assert!(product(&a, &b, DType::F32).is_err());
        let weight = streamed(&of((5, 4), 0.3, DType::BF16), DType::BF16);
        assert!(products_of_few_rows(&a, [&weight], DType::BF16).is_err());
    });
}
