//! Helpers for tests of code that uses these operations.

use candle_core::{DType, Tensor};

pub use super::forced::GENERIC;
pub use super::product::INSTRUCTIONS;
use super::product::Instructions;
use super::product::operand::{Factors, LINES, Operand, STEP, Strides, Sums, WORDS};
use super::product::tile::{configured, multiply};

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
    let actual = values(actual);
    let expected = values(expected);
    let largest = expected.iter().fold(1e-12, |max: f64, x| max.max(x.abs()));
    // A NaN must not compare as small.
    let differences = actual
        .iter()
        .zip(&expected)
        .map(|(a, e)| (a - e).abs() / largest);
    differences.fold(0.0, |max, x| if x <= max { max } else { x })
}

fn values(tensor: &Tensor) -> Vec<f64> {
    let wide = tensor.to_dtype(DType::F64).unwrap();
    wide.flatten_all().unwrap().to_vec1().unwrap()
}

/// Work that keeps the units for products busy with numbers from registers and the nearest cache.
pub struct Busy {
    instructions: Instructions,
    words: Vec<u32>,
}

impl Busy {
    const STEPS: usize = 4;
    const REPEATS: usize = 2_000;

    /// Work for `instructions`.
    pub fn new(instructions: Instructions) -> Self {
        Self {
            instructions,
            words: vec![0x3f80_3f80; 2 * WORDS * Self::STEPS],
        }
    }

    /// Number of multiplications and additions of [`Self::run`].
    pub fn operations(&self) -> f64 {
        let of_step = if self.instructions == Instructions::F32 {
            SUMS * pulp::Arch::new().dispatch(Lanes)
        } else {
            STEP * LINES
        };
        (2 * Self::REPEATS * Self::STEPS * LINES * of_step) as f64
    }

    /// Does the work once.
    pub fn run(&self) {
        if self.instructions == Instructions::F32 {
            let sums = MulAdds(Self::REPEATS * Self::STEPS * LINES);
            std::hint::black_box(pulp::Arch::new().dispatch(sums));
            return;
        }
        let operand = Operand {
            words: &self.words,
            strides: Strides::PACKED,
        };
        let factors = Factors {
            left: operand,
            right: operand,
            steps: Self::STEPS,
            lines: LINES,
        };
        let mut sums = Sums::ZERO;
        configured(self.instructions, || {
            for _ in 0..Self::REPEATS {
                multiply(self.instructions, factors, &mut sums, true);
            }
        });
        std::hint::black_box(&sums);
    }
}

/// Number of independent sums, enough to hide an operation's latency.
const SUMS: usize = 12;

/// Multiplies and adds to each of the sums, this many times.
struct MulAdds(usize);

impl pulp::WithSimd for MulAdds {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> f32 {
        let x = std::hint::black_box(simd.splat_f32s(0.5));
        let mut sums = [simd.splat_f32s(1.0); SUMS];
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
