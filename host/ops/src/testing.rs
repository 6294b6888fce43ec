//! Helpers for tests of code that uses these operations.

use std::cell::Cell;

use candle_core::{DType, Tensor};

pub use super::product::Instructions;

thread_local! {
    /// True while this thread's operations use `generic` even where a fused kernel supports them.
    pub static GENERIC: Cell<bool> = const { Cell::new(false) };
    /// The instructions of this thread's products, in place of the fastest.
    pub static INSTRUCTIONS: Cell<Option<Instructions>> = const { Cell::new(None) };
}

/// Runs `work` on one thread, with all operations from `generic`.
pub fn generic<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        GENERIC.set(true);
        work()
    })
}

/// Largest difference of two tensors, relative to the largest value of the second.
pub fn distance(actual: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(actual.dims(), expected.dims());
    let values = |tensor: &Tensor| -> Vec<f64> {
        tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    let (actual, expected) = (values(actual), values(expected));
    let largest = expected.iter().fold(1e-12, |max: f64, x| max.max(x.abs()));
    // A NaN must not compare as small.
    let differences = actual.iter().zip(&expected).map(|(a, e)| (a - e).abs() / largest);
    differences.fold(0.0, |max, x| if x <= max { max } else { x })
}
