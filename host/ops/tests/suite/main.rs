//! Each operation against plain formulas, its compositions and central differences; the CUDA kernels against plain formulas in f64: on a real device
//! where `CAPO_TEST_DEVICE` is `cuda`, else on the CPU, by an emulated driver.
//!
//! None of the tests lie in the crate, whose numeric code takes half a minute to build: it would be built a second time for them.

mod bf16;
/// The name by which tests that need a device are found.
mod cuda {
    #[macro_use]
    mod gpu;
    mod logits;
}
mod divergence;
mod draw;
mod few_rows;
mod generic;
mod kernel;
mod operations;
mod product;
mod rng;
mod tile;
mod truncate;
