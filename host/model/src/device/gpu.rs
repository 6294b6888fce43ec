//! Checks of a GPU when it is opened, and a note of its name and memory.

use anyhow::Result;
use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::sys;

use super::memory::{self, Memory};
use super::required::{self, Capability};

/// Compares the driver's version with that of this host's libraries. The driver must be
/// initialized.
pub(super) fn check_driver(name: &str) -> Result<()> {
    let mut version = 0;
    // SAFETY: the driver writes one number.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) }.result();
    if asked.is_ok() {
        required::driver(name, version)
    } else {
        Ok(())
    }
}

/// Checks an opened device, notes its memory, and compiles the kernels if that was not done before.
pub(super) fn prepare(name: &str, device: Device) -> Result<Device> {
    let Device::Cuda(cuda) = &device else {
        return Ok(device);
    };
    let context = cuda.cuda_stream().context().clone();
    if let Ok((major, minor)) = context.compute_capability() {
        required::capability(name, Capability { major, minor })?;
    }
    let product = context.name().unwrap_or_else(|_| "a GPU".to_owned());
    memory::note(
        name,
        product,
        Box::new(move || {
            let (free, total) = context.mem_get_info().ok()?;
            Some(Memory {
                free: free as u64,
                total: total as u64,
            })
        }),
    );
    if !host_ops::are_kernels_kept(cuda)? {
        capo_system::terminal::note(
            "compiling kernels for this GPU, once \
             (kept in `~/.cache/capo`, and by the driver in `~/.nv`)",
        );
        host_ops::load_kernels(cuda)?;
    }
    Ok(device)
}
