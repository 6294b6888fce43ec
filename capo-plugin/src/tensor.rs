//! Tensors that are used in place, without a copy: the fields of DLPack's `DLTensor`, plus the
//! stream on which the data is ready.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::std_types::RSlice;

use crate::PluginError;

/// Device that holds a tensor: DLPack's device types.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceKind(pub i32);

impl DeviceKind {
    /// Host memory.
    pub const CPU: Self = Self(1);
    /// CUDA device memory in the device's primary context.
    pub const CUDA: Self = Self(2);
}

/// Element type: DLPack's `(code, bits, lanes)`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct DType {
    /// 0 signed integer, 1 unsigned integer, 2 float, 4 bfloat.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes of one element; 1 for scalars.
    pub lanes: u16,
}

impl DType {
    /// 32-bit IEEE float.
    pub const F32: Self = Self {
        code: 2,
        bits: 32,
        lanes: 1,
    };
    /// 16-bit IEEE float.
    pub const F16: Self = Self {
        code: 2,
        bits: 16,
        lanes: 1,
    };
    /// 16-bit brain float.
    pub const BF16: Self = Self {
        code: 4,
        bits: 16,
        lanes: 1,
    };
    /// 32-bit unsigned integer.
    pub const U32: Self = Self {
        code: 1,
        bits: 32,
        lanes: 1,
    };
}

impl fmt::Display for DType {
    /// Formats as `f32`, `bf16` or `u32`; with lanes, as `f32x4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { code, bits, lanes } = self;
        match code {
            0 => write!(f, "i{bits}"),
            1 => write!(f, "u{bits}"),
            2 => write!(f, "f{bits}"),
            4 => write!(f, "bf{bits}"),
            _ => write!(f, "DLPack's type {code} of {bits} bits"),
        }?;
        if lanes == 1 {
            Ok(())
        } else {
            write!(f, "x{lanes}")
        }
    }
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// A borrowed tensor on any device, valid until the call that lends it returns.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Tensor<'a> {
    data: *const c_void,
    device: DeviceKind,
    device_id: i32,
    dtype: DType,
    shape: RSlice<'a, i64>,
    strides: RSlice<'a, i64>,
    byte_offset: u64,
    stream: *mut c_void,
    lifetime: PhantomData<&'a ()>,
}

impl<'a> Tensor<'a> {
    /// A compact f32 tensor over host memory.
    ///
    /// # Panics
    ///
    /// When `shape` does not multiply to `values.len()`.
    pub fn from_f32(values: &'a [f32], shape: &'a [i64]) -> Self {
        Self::on_cpu(values.as_ptr().cast(), values.len(), DType::F32, shape)
    }

    /// A compact u32 tensor over host memory.
    ///
    /// # Panics
    ///
    /// When `shape` does not multiply to `values.len()`.
    pub fn from_u32(values: &'a [u32], shape: &'a [i64]) -> Self {
        Self::on_cpu(values.as_ptr().cast(), values.len(), DType::U32, shape)
    }

    fn on_cpu(data: *const c_void, len: usize, dtype: DType, shape: &'a [i64]) -> Self {
        assert_eq!(
            shape.iter().product::<i64>(),
            len as i64,
            "shape {shape:?} does not hold {len} values"
        );
        Self {
            data,
            device: DeviceKind::CPU,
            device_id: 0,
            dtype,
            shape: RSlice::from_slice(shape),
            strides: RSlice::EMPTY,
            byte_offset: 0,
            stream: std::ptr::null_mut(),
            lifetime: PhantomData,
        }
    }

    /// A tensor in device memory.
    ///
    /// # Safety
    ///
    /// `data + byte_offset` must be the address of `shape`'s elements at `strides` (in elements;
    /// empty means compact) on device `device_id` of kind `device`. The memory must be valid for
    /// `'a`, and ready once the work queued on `stream` is done. The per-thread default stream of
    /// CUDA, handle 2, stands for that of any thread: [`Self::stream`] then gives the device's
    /// default stream.
    #[expect(
        clippy::too_many_arguments,
        reason = "DLPack's fields, no more and no fewer"
    )]
    pub unsafe fn from_raw(
        data: *const c_void,
        device: DeviceKind,
        device_id: i32,
        dtype: DType,
        shape: &'a [i64],
        strides: &'a [i64],
        byte_offset: u64,
        stream: *mut c_void,
    ) -> Self {
        // The handle means the stream of the thread that uses it. The default stream waits for
        // those of all threads, and they for it.
        let stream = if stream as usize == PER_THREAD {
            std::ptr::null_mut()
        } else {
            stream
        };
        Self {
            data,
            device,
            device_id,
            dtype,
            shape: RSlice::from_slice(shape),
            strides: RSlice::from_slice(strides),
            byte_offset,
            stream,
            lifetime: PhantomData,
        }
    }

    /// Host address of the first element, or its `CUdeviceptr`.
    pub fn address(&self) -> u64 {
        self.data as u64 + self.byte_offset
    }

    /// Kind of the tensor's device, and the device's index within the kind.
    pub fn device(&self) -> (DeviceKind, i32) {
        (self.device, self.device_id)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extent of each dimension.
    pub fn shape(&self) -> &'a [i64] {
        self.shape.as_slice()
    }

    /// Strides in elements; empty when compact and row-major.
    pub fn strides(&self) -> &'a [i64] {
        self.strides.as_slice()
    }

    /// The `CUstream` on which the data is ready, whichever thread uses it; null is the device's
    /// default stream. Null on the CPU.
    pub fn stream(&self) -> *mut c_void {
        self.stream
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape().iter().product::<i64>() as usize
    }

    /// True if the tensor has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as a slice of f32.
    ///
    /// # Errors
    ///
    /// When the tensor is not a compact f32 tensor in host memory.
    pub fn as_f32(&self) -> Result<&'a [f32], PluginError> {
        let data = self.host_data(DType::F32)?;
        // SAFETY: `host_data` checked device, dtype and compactness. The constructors guarantee
        // validity for `'a`.
        Ok(unsafe { std::slice::from_raw_parts(data.cast(), self.len()) })
    }

    /// The elements as a slice of u32.
    ///
    /// # Errors
    ///
    /// When the tensor is not a compact u32 tensor in host memory.
    pub fn as_u32(&self) -> Result<&'a [u32], PluginError> {
        let data = self.host_data(DType::U32)?;
        // SAFETY: as in `as_f32`.
        Ok(unsafe { std::slice::from_raw_parts(data.cast(), self.len()) })
    }

    fn host_data(&self, dtype: DType) -> Result<*const u8, PluginError> {
        if self.device != DeviceKind::CPU {
            return Err(PluginError::unsupported(
                "a tensor lies in device memory and this component reads host memory only (run \
                 with `--device cpu`)",
            ));
        }
        if self.dtype != dtype || !self.strides.is_empty() {
            return Err(PluginError::unsupported(format!(
                "a tensor has type {} with strides {:?} and this component reads compact {dtype}",
                self.dtype,
                self.strides()
            )));
        }
        Ok(self
            .data
            .cast::<u8>()
            .wrapping_add(self.byte_offset as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_tensors_that_are_no_slices() {
        let say = |device, dtype| {
            let (data, stream) = (std::ptr::dangling(), std::ptr::null_mut());
            // SAFETY: `as_f32` refuses both tensors without a look at the values.
            let tensor = unsafe { Tensor::from_raw(data, device, 0, dtype, &[2], &[], 0, stream) };
            tensor.as_f32().unwrap_err().to_string()
        };
        assert_eq!(
            say(DeviceKind::CUDA, DType::F32),
            "a tensor lies in device memory and this component reads host memory only (run with `--device cpu`)"
        );
        assert_eq!(
            say(DeviceKind::CPU, DType::BF16),
            "a tensor has type bf16 with strides [] and this component reads compact f32"
        );
        assert_eq!(Tensor::from_u32(&[3], &[1]).as_u32().unwrap(), [3]);
    }

    /// A component may work on any thread.
    #[test]
    fn a_stream_means_the_same_on_every_thread() {
        for (given, expected) in [(0, 0), (1, 1), (2, 0), (0x5550, 0x5550)] {
            let (data, stream) = (std::ptr::dangling(), given as *mut c_void);
            // SAFETY: Nobody looks at the values.
            let tensor = unsafe {
                Tensor::from_raw(data, DeviceKind::CUDA, 0, DType::F32, &[2], &[], 0, stream)
            };
            assert_eq!(tensor.stream() as usize, expected);
        }
    }
}
