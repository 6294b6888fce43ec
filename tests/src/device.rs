//! The CUDA device of these tests: a real one if `CAPO_TEST_DEVICE` is `cuda`, else the emulator.

use cuda_emulator::Emulator;

use crate::Folder;
use crate::artifacts::workspace;

/// True if these tests run on a real device.
pub fn is_real() -> bool {
    std::env::var_os("CAPO_TEST_DEVICE").is_some_and(|device| device == "cuda")
}

/// The emulator, loaded into this process too. Without a compiler for it, returns `None` and prints a line to stderr.
pub fn emulator() -> Option<Emulator> {
    cuda_emulator::for_tests(&workspace().join("capo-core/kernels"))
}

/// A fresh folder whose processes find the device. The emulator ends processes whose host code reads the device's memory,
/// and its work is late.
///
/// Without a device, returns `None` and prints a line to stderr; the test should then return.
pub fn folder() -> Option<Folder> {
    if is_real() {
        let places = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        return Some(Folder::new().env("LD_LIBRARY_PATH", places));
    }
    let emulator = emulator()?;
    let settings = Folder::new().env("CUDA_EMULATOR_STRICT", "1").env("CUDA_EMULATOR_LATE", "1");
    Some(settings.env("LD_LIBRARY_PATH", emulator.folder()))
}
