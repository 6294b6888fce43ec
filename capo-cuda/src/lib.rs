//! The parts of CUDA that capo's crates share: the names of devices, whether the machine has the
//! driver, and kernels that NVRTC compiles once for a machine.
//!
//! Nothing here needs CUDA to build or to load.

#![deny(missing_docs)]

pub mod device;
pub mod driver;
pub mod kernels;
mod library;
