//! A launch of a kernel on tensors.

use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, SyncOnDrop,
};
use candle_core::cuda_backend::{CudaDType, CudaStorageSlice, WrapErr};
use candle_core::{
    CudaDevice, DType, Device, Error, Layout, Result, Shape, Storage, StorageRef, Tensor,
};

use super::super::kernel::layout_error;
use super::THREADS;
use super::image::kernel;

/// Rows of blocks that a grid can have.
pub(super) const MOST_PARTS: usize = 65_535;

enum Argument<'a> {
    Memory(StorageRef<'a>, &'a Layout),
    Word(u32),
    Long(u64),
    Float(f32),
    Double(f64),
}

/// A kernel and its arguments, which are added in the order of the kernel's parameters.
pub(super) struct Launch<'a> {
    name: String,
    device: &'a CudaDevice,
    arguments: Vec<Argument<'a>>,
    threads: usize,
}

/// The device of a tensor.
pub(super) fn device_of(tensor: &Tensor) -> Result<&CudaDevice> {
    match tensor.device() {
        Device::Cuda(device) => Ok(device),
        _ => layout_error("a kernel", "tensors must be on the CUDA device".to_owned()),
    }
}

/// The end of the names of the kernels for `dtype`.
fn suffix(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F32 => Ok("f32"),
        DType::BF16 => Ok("bf16"),
        other => Err(Error::UnsupportedDTypeForOp(other, "a kernel")),
    }
}

/// A tensor in `shape` on the device of `x`. The next launch must write all of its numbers.
pub(super) fn unwritten(x: &Tensor, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    // SAFETY: the callers hand the tensor to a kernel that writes all of it before they return it.
    unsafe { Tensor::empty(shape, dtype, x.device()) }
}

impl<'a> Launch<'a> {
    /// A launch of `name` for the dtype of `x`, on its device.
    pub(super) fn new(name: &str, x: &'a Tensor) -> Result<Self> {
        Self::named(format!("{name}_{}", suffix(x.dtype())?), x)
    }

    /// A launch of exactly this kernel, on the device of `x`.
    pub(super) fn named(name: String, x: &'a Tensor) -> Result<Self> {
        Ok(Self {
            name,
            device: device_of(x)?,
            arguments: Vec::new(),
            threads: THREADS,
        })
    }

    /// The address of a contiguous tensor of this dtype and number of elements, which the kernel
    /// reads or writes.
    pub(super) fn memory(mut self, tensor: &'a Tensor, dtype: DType, len: usize) -> Result<Self> {
        if tensor.dtype() != dtype || tensor.elem_count() != len || !tensor.is_contiguous() {
            let found = (tensor.dtype(), tensor.dims());
            return layout_error(
                "a kernel",
                format!("`{}` got {found:?}, expected {len} of {dtype:?}", self.name),
            );
        }
        if !device_of(tensor)?.id().eq(&self.device.id()) {
            return layout_error(
                "a kernel",
                format!("`{}` got tensors of two devices", self.name),
            );
        }
        let (storage, layout) = tensor.storage_and_layout();
        self.arguments.push(Argument::Memory(storage, layout));
        Ok(self)
    }

    /// The address of rows `[.., width]` whose numbers lie together, and the distance between rows.
    /// The first axis alone may be longer than 1.
    pub(super) fn lines(
        mut self,
        tensor: &'a Tensor,
        dtype: DType,
        [rows, width]: [usize; 2],
    ) -> Result<(Self, usize)> {
        let first = tensor.dim(0)?;
        let last = tensor.rank() - 1;
        let stride = tensor.stride();
        let layout = tensor.layout();
        let fits =
            first == rows && tensor.dim(last)? == width && tensor.elem_count() == rows * width;
        if tensor.is_contiguous() || !fits || stride[last] != 1 || tensor.dtype() != dtype {
            return Ok((self.memory(tensor, dtype, rows * width)?, width));
        }
        let (storage, _) = tensor.storage_and_layout();
        self.arguments.push(Argument::Memory(storage, layout));
        Ok((self, stride[0]))
    }

    /// The argument that `memory` makes; without a tensor, the address is null.
    pub(super) fn optional(
        mut self,
        tensor: Option<&'a Tensor>,
        dtype: DType,
        len: usize,
    ) -> Result<Self> {
        if let Some(tensor) = tensor {
            return self.memory(tensor, dtype, len);
        }
        self.arguments.push(Argument::Long(0));
        Ok(self)
    }

    /// 32-bit numbers; one that has more bits is an error.
    pub(super) fn words<const N: usize>(mut self, values: [usize; N]) -> Result<Self> {
        for value in values {
            let Ok(word) = u32::try_from(value) else {
                return layout_error(
                    "a kernel",
                    format!("`{}` got {value}, at most {}", self.name, u32::MAX),
                );
            };
            self.arguments.push(Argument::Word(word));
        }
        Ok(self)
    }

    pub(super) fn long(mut self, value: usize) -> Self {
        self.arguments.push(Argument::Long(value as u64));
        self
    }

    pub(super) fn float(mut self, value: f64) -> Self {
        self.arguments.push(Argument::Float(value as f32));
        self
    }

    pub(super) fn double(mut self, value: f64) -> Self {
        self.arguments.push(Argument::Double(value));
        self
    }

    /// With `threads` in a block, in place of [`THREADS`].
    pub(super) fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Launches the kernel in a grid of so many columns and rows of blocks; does nothing if the
    /// grid is empty.
    ///
    /// # Safety
    ///
    /// The arguments are those of the kernel's parameters, and with this grid it stays within each
    /// one's elements.
    pub(super) unsafe fn run(self, columns: usize, rows: usize) -> Result<()> {
        if columns == 0 || rows == 0 {
            return Ok(());
        }
        let Ok(columns) = i32::try_from(columns) else {
            return layout_error(
                "a kernel",
                format!("{columns} blocks are too many (use a smaller batch)"),
            );
        };
        let function = kernel(self.device, &self.name)?;
        let stream = self.device.cuda_stream();
        let mut addresses = Vec::with_capacity(self.arguments.len());
        for argument in &self.arguments {
            if let Argument::Memory(storage, layout) = argument {
                addresses.push(address(storage, layout, &stream)?);
            }
        }
        let mut launch = stream.launch_builder(&function);
        let mut address = addresses.iter();
        for argument in &self.arguments {
            match argument {
                Argument::Memory(..) => {
                    launch.arg(&address.next().expect("an address for each tensor").0)
                }
                Argument::Word(value) => launch.arg(value),
                Argument::Long(value) => launch.arg(value),
                Argument::Float(value) => launch.arg(value),
                Argument::Double(value) => launch.arg(value),
            };
        }
        let grid_dim = (columns as u32, rows as u32, 1);
        let block_dim = (self.threads as u32, 1, 1);
        // SAFETY: the caller's; the storages stay locked until the kernel is on the stream, on
        // which they are freed.
        unsafe {
            launch.launch(LaunchConfig {
                grid_dim,
                block_dim,
                shared_mem_bytes: 0,
            })
        }
        .w()?;
        Ok(())
    }
}

/// Where the elements of a layout begin. The second value tells the stream when their use has
/// ended.
pub(super) fn address<'a>(
    storage: &'a Storage,
    layout: &Layout,
    stream: &'a CudaStream,
) -> Result<(u64, SyncOnDrop<'a>)> {
    fn at<'a, T: CudaDType>(
        slice: &'a CudaSlice<T>,
        offset: usize,
        stream: &'a CudaStream,
    ) -> (u64, SyncOnDrop<'a>) {
        let (start, used) = slice.device_ptr(stream);
        (start + (offset * size_of::<T>()) as u64, used)
    }
    let Storage::Cuda(storage) = storage else {
        return layout_error("a kernel", "tensors must be on the CUDA device".to_owned());
    };
    let offset = layout.start_offset();
    match &storage.slice {
        CudaStorageSlice::F32(slice) => Ok(at(slice, offset, stream)),
        CudaStorageSlice::BF16(slice) => Ok(at(slice, offset, stream)),
        CudaStorageSlice::F64(slice) => Ok(at(slice, offset, stream)),
        CudaStorageSlice::U32(slice) => Ok(at(slice, offset, stream)),
        CudaStorageSlice::I64(slice) => Ok(at(slice, offset, stream)),
        _ => layout_error(
            "a kernel",
            "tensors must be f32, bf16, f64, u32 or i64".to_owned(),
        ),
    }
}
