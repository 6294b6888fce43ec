//! The whole suite once more, with its batches on a CUDA device, and what only the device can get wrong.
//!
//! The device is the emulator of `tests/cuda-emulator`, or with `CAPO_TEST_DEVICE=cuda` a real one.

#[path = "cuda/agreement.rs"]
mod agreement;
#[path = "suite/main.rs"]
mod suite;
