//! The whole suite once more, with its batches on a CUDA device, and what only a device can get
//! wrong.
//!
//! The device is the emulator of `tests/cuda-emulator`, or with `CAPO_TEST_DEVICE=cuda` a real one.

/// The name by which tests that need a device are found.
mod cuda {
    mod agreement;
    mod faults;
    mod moves;
    mod shapes;
    mod streams;
    #[path = "../suite/main.rs"]
    mod suite;
}
