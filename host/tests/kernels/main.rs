//! The CUDA kernels, run on the CPU by an emulated driver, against plain formulas in f64.

#[macro_use]
mod gpu;
mod attention;
mod layers;
mod logits;
