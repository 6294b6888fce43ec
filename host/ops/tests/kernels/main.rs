//! The CUDA kernels against plain formulas in f64: on a real device where `CAPO_TEST_DEVICE` is `cuda`, else on the CPU, by an emulated driver.

/// The name by which tests that need a device are found.
mod cuda {
    #[macro_use]
    mod gpu;
    mod logits;
}
