//! Helpers for tests of code that uses these operations.

use std::cell::Cell;

use candle_core::{DType, Tensor};

pub use super::product::INSTRUCTIONS;
use super::product::Instructions;
use super::product::tile::{LINES, Operand, STEP, Strides, Sums, WORDS, configured, multiply};

thread_local! {
    /// True while this thread's operations use `generic` even where a fused kernel supports them.
    pub static GENERIC: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on one thread, with all operations from `generic`.
pub fn generic<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    pool.install(|| {
        GENERIC.set(true);
        work()
    })
}

/// Largest difference of two tensors, relative to the largest value of the second.
pub fn distance(actual: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(actual.dims(), expected.dims());
    let values = |tensor: &Tensor| -> Vec<f64> {
        tensor
            .to_dtype(DType::F64)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap()
    };
    let (actual, expected) = (values(actual), values(expected));
    let largest = expected.iter().fold(1e-12, |max: f64, x| max.max(x.abs()));
    // A NaN must not compare as small.
    let differences = actual
        .iter()
        .zip(&expected)
        .map(|(a, e)| (a - e).abs() / largest);
    differences.fold(0.0, |max, x| if x <= max { max } else { x })
}

/// For f32 and bf16: what keeps the products' units at work with numbers from registers and the
/// nearest cache, and its operations.
pub fn possible(instructions: Instructions) -> [(impl Fn(), f64); 2] {
    const STEPS: usize = 4;
    const REPEATS: usize = 2_000;
    [Instructions::F32, instructions].map(|instructions| {
        let words = vec![0x3f80_3f80; 2 * WORDS * STEPS];
        let in_tiles = instructions != Instructions::F32;
        let work = move || {
            if !in_tiles {
                std::hint::black_box(pulp::Arch::new().dispatch(MulAdds(REPEATS * STEPS * LINES)));
                return;
            }
            let operand = Operand {
                words: &words,
                strides: Strides::PACKED,
            };
            let mut sums = Sums::ZERO;
            configured(instructions, || {
                for _ in 0..REPEATS {
                    multiply(instructions, STEPS, operand, operand, (&mut sums, true));
                }
            });
            std::hint::black_box(&sums);
        };
        let lanes = pulp::Arch::new().dispatch(Lanes);
        let in_vectors = 2 * REPEATS * STEPS * LINES * SUMS * lanes;
        (
            work,
            (if in_tiles {
                2 * REPEATS * STEPS * STEP * LINES * LINES
            } else {
                in_vectors
            }) as f64,
        )
    })
}

/// Sums that are independent, as many as hide an operation's latency.
const SUMS: usize = 12;

/// So many times, one multiplication and addition to each of the sums.
struct MulAdds(usize);

impl pulp::WithSimd for MulAdds {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> f32 {
        let (x, mut sums) = (
            std::hint::black_box(simd.splat_f32s(0.5)),
            [simd.splat_f32s(1.0); SUMS],
        );
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(x, x, *sum);
            }
        }
        sums.into_iter().map(|sum| simd.reduce_sum_f32s(sum)).sum()
    }
}

/// Numbers in a vector.
struct Lanes;

impl pulp::WithSimd for Lanes {
    type Output = usize;

    fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}
