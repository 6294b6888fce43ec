//! The probe for the NVIDIA driver on this machine, and the names of the driver's errors.

use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::DriverError;

use crate::library;

const LIBRARY: &str = if cfg!(windows) {
    "nvcuda.dll"
} else {
    "libcuda.so.1"
};

/// The error on a machine without the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDriver(());

impl fmt::Display for NoDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this machine has no CUDA driver, `{LIBRARY}` could not be loaded (install the NVIDIA \
             driver, or run with `--device cpu`)"
        )
    }
}

impl std::error::Error for NoDriver {}

/// Loads the driver's library if this process has not yet. cudarc may be called afterwards; without
/// the library it would panic.
///
/// # Errors
///
/// When the library cannot be loaded.
pub fn load() -> Result<(), NoDriver> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    if *PRESENT.get_or_init(|| library::is_present(&[LIBRARY])) {
        Ok(())
    } else {
        Err(NoDriver(()))
    }
}

/// The driver's name for an error, such as `CUDA_ERROR_OUT_OF_MEMORY`.
pub fn error_name(error: &DriverError) -> &str {
    error
        .error_name()
        .ok()
        .and_then(|name| name.to_str().ok())
        .unwrap_or("an unknown error")
}
