//! Copies recorded batches to the memory of a CUDA device, where masks find them as in training on
//! that device.
//!
//! It needs only the driver, which is loaded when the first device is opened, and does not use
//! candle.

use std::ffi::c_void;

use anyhow::{Context, Result, anyhow, bail};
use capo_cuda::device::cuda_number;
use capo_plugin::{Batch, DType, DeviceKind, LastLayer, OptimizerState, Tensor};
use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::{result as driver, sys};
use half::{bf16, f16};

/// Float type to which features are converted when they are copied to a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dtype {
    /// f32, as recorded.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE float16.
    F16,
}

impl Dtype {
    /// All types with their names in `--dtype`.
    pub const NAMES: [(&'static str, Self); 3] =
        [("f32", Self::F32), ("bf16", Self::Bf16), ("f16", Self::F16)];
}

/// A CUDA device with its own stream. It must outlive the work of components on its batches.
#[derive(Debug)]
pub struct Device {
    number: i32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    features: Dtype,
}

impl Device {
    /// Opens the device called `name`, `None` for `cpu`. Features are copied to it as the type
    /// `features`.
    ///
    /// # Errors
    ///
    /// When the name is no device, the machine lacks the driver or the device, or `features` is not
    /// f32 on the CPU.
    pub fn open(name: &str, features: Dtype) -> Result<Option<Self>> {
        match cuda_number(name)? {
            Some(number) => {
                let opened = capo_cuda::driver::load()
                    .map_err(anyhow::Error::from)
                    .and_then(|()| Self::opened(number, features));
                opened.map(Some).with_context(|| format!("device `{name}`"))
            }
            None if features == Dtype::F32 => Ok(None),
            None => {
                bail!(
                    "`--dtype` is for batches on a CUDA device, on the CPU features are f32 (add `--device cuda:0`)"
                )
            }
        }
    }

    fn opened(number: usize, features: Dtype) -> Result<Self> {
        let count = driver::init().and_then(|()| driver::device::get_count());
        let count = count.map_err(failed("starting the NVIDIA driver"))?;
        let Some(number) = i32::try_from(number).ok().filter(|number| *number < count) else {
            bail!(
                "the NVIDIA driver shows {count} devices, numbered from 0 (name one of them, or run with `--device cpu`)"
            );
        };
        let handle = driver::device::get(number).map_err(failed("opening it"))?;
        // SAFETY: `handle` is a device; `drop` releases what is retained here.
        let context = unsafe { driver::primary_ctx::retain(handle) };
        let context = context.map_err(failed("making its context"))?;
        let mut device = Self {
            number,
            handle,
            context,
            stream: std::ptr::null_mut(),
            features,
        };
        device.enter()?;
        device.stream =
            driver::stream::create(StreamKind::NonBlocking).map_err(failed("making a stream"))?;
        Ok(device)
    }

    /// Makes the device's context current in this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as `self` lives.
        unsafe { driver::ctx::set_current(self.context) }.map_err(failed("entering its context"))
    }

    /// Copies the last layer and the optimizer's state of `batch` from host memory to this device.
    ///
    /// # Errors
    ///
    /// When the device fails, for example because its memory is full.
    pub fn upload(&self, batch: &Batch<'_>) -> Result<Upload<'_>> {
        self.copy(batch)
            .with_context(|| format!("device `cuda:{}`", self.number))
    }

    fn copy(&self, batch: &Batch<'_>) -> Result<Upload<'_>> {
        self.enter()?;
        let floats =
            |tensor: &Tensor<'_>| self.memory(tensor.as_f32()?, DType::F32, tensor.shape());
        let mut upload = Upload {
            last_layer: None,
            state: None,
        };
        if let Some(last) = &batch.last_layer {
            upload.last_layer = Some([
                self.features(last.hidden.as_f32()?, last.hidden.shape())?,
                self.memory(last.topk_ids.as_u32()?, DType::U32, last.topk_ids.shape())?,
                floats(&last.topk_logits)?,
                floats(&last.logsumexp)?,
                floats(&last.action_logits)?,
            ]);
        }
        if let Some(state) = &batch.optimizer_state {
            upload.state = Some([
                floats(&state.weight)?,
                floats(&state.exp_avg)?,
                floats(&state.exp_avg_sq)?,
            ]);
        }
        Ok(upload)
    }

    fn features(&self, values: &[f32], shape: &[i64]) -> Result<Memory<'_>> {
        let rounded = |round: fn(f32) -> u16| {
            values
                .iter()
                .map(|&value| round(value))
                .collect::<Vec<u16>>()
        };
        match self.features {
            Dtype::F32 => self.memory(values, DType::F32, shape),
            Dtype::Bf16 => self.memory(
                &rounded(|value| bf16::from_f32(value).to_bits()),
                DType::BF16,
                shape,
            ),
            Dtype::F16 => self.memory(
                &rounded(|value| f16::from_f32(value).to_bits()),
                DType::F16,
                shape,
            ),
        }
    }

    /// Copies `values` to the device, as a tensor of this dtype and shape. The values are numbers
    /// of `dtype` or their bytes.
    fn memory<T: Copy>(&self, values: &[T], dtype: DType, shape: &[i64]) -> Result<Memory<'_>> {
        let bytes = size_of_val(values);
        assert_eq!(
            shape.iter().product::<i64>() * i64::from(dtype.bits) / 8,
            bytes as i64,
            "{dtype}, {shape:?}"
        );
        // SAFETY: the context is current.
        let address = unsafe { driver::malloc_sync(bytes.max(1)) };
        let advice = "record smaller batches, or run with `--device cpu`";
        let taking = format!("taking {bytes} bytes of memory for a batch ({advice})");
        let address = address.map_err(failed(&taking))?;
        let memory = Memory {
            device: self,
            address,
            dtype,
            shape: shape.to_vec(),
        };
        if bytes > 0 {
            // SAFETY: `address` has that many bytes. Pageable memory has been read when the call
            // returns.
            unsafe { driver::memcpy_htod_async(address, values, self.stream) }
                .map_err(failed("copying a batch to it"))?;
        }
        Ok(memory)
    }
}

impl Drop for Device {
    /// Releases the stream and the context. Failures are ignored, and the driver keeps the
    /// resources.
    fn drop(&mut self) {
        let _ = self.enter();
        // SAFETY: the stream, if any, and the context were made in `opened`, and every `Memory`
        // borrows `self`.
        unsafe {
            if !self.stream.is_null() {
                let _ = driver::stream::destroy(self.stream);
            }
            let _ = driver::primary_ctx::release(self.handle);
        }
    }
}

/// The large arrays of a batch in a device's memory, until dropped.
#[derive(Debug)]
pub struct Upload<'d> {
    /// Tensors in the order of [`LastLayer::new`].
    last_layer: Option<[Memory<'d>; 5]>,
    /// Tensors in the order of [`OptimizerState::new`].
    state: Option<[Memory<'d>; 3]>,
}

impl Upload<'_> {
    /// Returns `batch` with these arrays in place of its own.
    pub fn view<'a>(&'a self, mut batch: Batch<'a>) -> Batch<'a> {
        if let (Some(last), Some(copies)) = (&mut batch.last_layer, &self.last_layer) {
            let [hidden, topk_ids, topk_logits, logsumexp, action_logits] =
                copies.each_ref().map(Memory::view);
            *last = LastLayer::new(
                hidden,
                topk_ids,
                topk_logits,
                logsumexp,
                action_logits,
                last.vocab_size,
            );
        }
        if let (Some(state), Some(copies)) = (&mut batch.optimizer_state, &self.state) {
            let [weight, exp_avg, exp_avg_sq] = copies.each_ref().map(Memory::view);
            *state = OptimizerState::new(weight, exp_avg, exp_avg_sq);
        }
        batch
    }
}

/// A tensor in a device's memory, which is freed on drop.
#[derive(Debug)]
struct Memory<'d> {
    device: &'d Device,
    address: sys::CUdeviceptr,
    dtype: DType,
    shape: Vec<i64>,
}

impl Memory<'_> {
    fn view(&self) -> Tensor<'_> {
        let &Self {
            device,
            address,
            dtype,
            ref shape,
        } = self;
        let (data, stream) = (address as *const c_void, device.stream.cast());
        // SAFETY: `address` in the primary context holds the compact elements of this shape. They
        // are ready when the copy queued on this stream is done, and `self` keeps them.
        unsafe {
            Tensor::from_raw(
                data,
                DeviceKind::CUDA,
                device.number,
                dtype,
                shape,
                &[],
                0,
                stream,
            )
        }
    }
}

impl Drop for Memory<'_> {
    /// Waits for queued work that uses the memory, then frees it. After a failure the memory stays
    /// allocated.
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: the stream lives in `device`; the address is from `malloc_sync`, and no
            // tensor of it is left.
            unsafe {
                let _ = driver::stream::synchronize(self.device.stream);
                let _ = driver::free_sync(self.address);
            }
        }
    }
}

fn failed(what: &str) -> impl FnOnce(driver::DriverError) -> anyhow::Error {
    move |error| {
        let name = capo_cuda::driver::error_name(&error);
        anyhow!("it failed with `{name}` in {what}")
    }
}
