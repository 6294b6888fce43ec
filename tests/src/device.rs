//! The CUDA device of these tests: a real one if `CAPO_TEST_DEVICE` is `cuda`, else the emulator.

use cuda_emulator::Emulator;

use crate::Folder;
use crate::artifacts::{self, workspace};

/// True if these tests run on a real device.
pub fn is_real() -> bool {
    std::env::var_os("CAPO_TEST_DEVICE").is_some_and(|device| device == "cuda")
}

/// The emulator, loaded into this process too. Without a compiler for it, returns `None` and prints
/// a line to stderr.
pub fn emulator() -> Option<Emulator> {
    cuda_emulator::for_tests(&workspace().join("capo-core/kernels"))
}

/// A fresh folder whose processes find the device. The emulator ends processes whose host code
/// reads the device's memory, and delays its work.
///
/// Without a device, returns `None` and prints a line to stderr; the test should then return.
pub fn folder() -> Option<Folder> {
    if is_real() {
        let places = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        return Some(Folder::new().env("LD_LIBRARY_PATH", places));
    }
    let emulator = emulator()?;
    let settings = Folder::new()
        .env("CUDA_EMULATOR_STRICT", "1")
        .env("CUDA_EMULATOR_LATE", "1");
    Some(settings.env("LD_LIBRARY_PATH", emulator.folder()))
}

/// A fresh folder whose `host` trains on the device: the executable that `CAPO_CUDA_HOST` names,
/// with the libraries of `CAPO_CUDA_LIBRARIES`. The emulator delays work as long as it may, and
/// chooses another order.
///
/// If the variables are missing, returns `None` and prints a line to stderr; the test should then
/// return.
pub fn trainer() -> Option<Folder> {
    let (Some(host), Some(libraries)) = (
        std::env::var_os("CAPO_CUDA_HOST"),
        std::env::var_os("CAPO_CUDA_LIBRARIES"),
    ) else {
        eprintln!(
            "SKIPPED: no `host` with CUDA (`scripts/emulated-gpu` builds one and runs these tests)"
        );
        return None;
    };
    let folder = Folder::new()
        .program(host.into())
        .env("LD_LIBRARY_PATH", libraries);
    let folder = folder.env("CAPO_PLUGIN_PATH", artifacts::folder());
    Some(folder.env("CUDA_EMULATOR_LATE", "1"))
}
