//! The whole suite once more, with its batches on a CUDA device: a real one, or the emulator of `tests/cuda-emulator`.

#[path = "suite/main.rs"]
mod suite;
