//! The device on which a policy computes, and the dtype of its activations.

#[cfg(feature = "cuda")]
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use candle_core::{DType, Device};
pub use capo_cuda::device::CPU;
use capo_cuda::device::cuda_number;
pub use failure::{explained, is_out_of_memory, with_estimate};
use host_ops as ops;
use serde::{Deserialize, Serialize};

use super::error::Error;

mod failure;
#[cfg(feature = "cuda")]
mod gpu;
pub mod memory;
#[cfg(any(test, feature = "cuda"))]
mod required;
pub mod tf32;

/// Floating-point type of activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit bfloat16; weights, moments, logits and losses stay 32-bit floats.
    Bf16,
}

impl Dtype {
    /// The other type.
    pub fn other(self) -> Self {
        match self {
            Self::F32 => Self::Bf16,
            Self::Bf16 => Self::F32,
        }
    }
}

impl From<Dtype> for DType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::BF16,
        }
    }
}

/// The device called `name`: `cpu`, or `cuda:N` for the CUDA device with number N.
pub fn open(name: &str) -> Result<Device> {
    ops::check_instructions()?;
    match cuda_number(name).map_err(|error| Error::absent_device(error.to_string()))? {
        Some(number) => open_cuda(name, number),
        None => Ok(Device::Cpu),
    }
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(name: &str, _number: usize) -> Result<Device> {
    let message = format!(
        "device `{name}`: this host was built without CUDA \
         (build with `--features cuda`, see docs/gpu.md, or run with `--device cpu`)"
    );
    Err(Error::absent_device(message).into())
}

/// Opens a CUDA device. The driver is queried first, because candle and cudarc panic without one.
#[cfg(feature = "cuda")]
fn open_cuda(name: &str, number: usize) -> Result<Device> {
    use anyhow::Context;
    use candle_core::cuda_backend::cudarc::driver::result;

    let count = match result::init().and_then(|()| result::device::get_count()) {
        Ok(count) => usize::try_from(count).unwrap_or(0),
        Err(result::DriverError(code)) => {
            let sentence = failure::sentence(&format!("{code:?}")).unwrap_or_else(|| {
                format!(
                    "the NVIDIA driver answers {code:?} \
                     (repair it, choose a machine with a GPU, or run with `--device cpu`)"
                )
            });
            return Err(Error::absent_device(format!("device `{name}`: {sentence}")).into());
        }
    };
    gpu::check_driver(name)?;
    if number >= count {
        let message = format!(
            "device `{name}`: the number of CUDA devices here is {count}, and they are numbered \
             from 0 (name one of them, or run with `--device cpu`)"
        );
        return Err(Error::absent_device(message).into());
    }
    keep_memory(number);
    let device = one_stream(number);
    gpu::prepare(
        name,
        device.with_context(|| {
            format!("device `{name}` cannot be opened (run with `--device cpu`)")
        })?,
    )
}

/// The device `number` with one stream for all threads of this process.
///
/// `Device::new_cuda` takes CUDA's per-thread default stream, whose handle means another stream on
/// every thread. Passes of the model run on a thread of rayon and components on the main thread, so
/// nothing would order the work of one after that of the other.
#[cfg(feature = "cuda")]
fn one_stream(number: usize) -> candle_core::Result<Device> {
    use candle_core::cuda_backend::WrapErr;

    static OPENED: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());

    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = opened.iter().find(|(known, _)| *known == number) {
        return Ok(device.clone());
    }
    let device = Device::new_cuda_with_stream(number)?;
    // Event tracking costs four more calls of the driver for each tensor, which make and destroy
    // two events. SAFETY: events order the streams of a process. All tensors of this device are
    // allocated, written, read and freed on its one stream: it is the only `Device` of this number,
    // and components get its stream with every tensor.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    // The driver needs the device's context to be current on each thread that calls it, and not all
    // of candle's calls make it current first.
    let stream = device.as_cuda_device()?.cuda_stream();
    for bound in rayon::broadcast(|_| stream.context().bind_to_thread()) {
        bound.w()?;
    }
    opened.push((number, device.clone()));
    Ok(device)
}

/// Lets the driver retain freed memory for the next allocation. By default it releases all of it
/// whenever the host waits for the device, which happens at every token. If the driver refuses,
/// allocation is only slower.
#[cfg(feature = "cuda")]
fn keep_memory(number: usize) {
    use candle_core::cuda_backend::cudarc::driver::{result, sys::CUmemPool_attribute};

    let number = i32::try_from(number).unwrap_or(i32::MAX);
    let mut all = u64::MAX;
    let _ = result::device::get(number).and_then(|device| {
        // SAFETY: device and memory pool come from the driver itself, and this attribute is a
        // 64-bit number.
        unsafe {
            let pool = result::device::get_default_mem_pool(device)?;
            let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            result::mem_pool::set_attribute(pool, threshold, (&raw mut all).cast())
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_unknown_names() {
        for name in [
            "gpu", "", "CPU", "cuda", "cuda:", "cuda:-1", "cuda:x", "cuda:0:1",
        ] {
            let error = open(name).unwrap_err();
            assert!(Error::of(&error).is_some_and(Error::is_absent_device));
            let expected = format!(
                "there is no device `{name}` (use `cpu`, or `cuda:0` for the first CUDA device)"
            );
            assert_eq!(error.to_string(), expected);
        }
        assert!(open("cpu").unwrap().is_cpu());
    }
}
