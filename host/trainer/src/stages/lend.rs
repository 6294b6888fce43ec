//! Tensors that components read without a copy, in host memory or on the policy's device.

use std::sync::Arc;

use anyhow::{Result, bail};
use candle_core::{DType, Tensor};
use capo_plugin::{DeviceKind, Dims, LayerBuffer, LendTensor, Memory, StateBuffer, TensorBuffer};
use host_model::LastLayerTensors;

/// A contiguous tensor in device memory, with the address and stream that other code needs to read
/// it. It keeps the memory alive.
#[derive(Debug, Clone)]
pub struct Lent {
    tensor: Tensor,
    address: u64,
    device_id: i32,
    dtype: capo_plugin::DType,
    /// The `CUstream` on which the values are ready.
    stream: usize,
}

impl Lent {
    /// Lends `tensor`. Its values must not change during the lifetime of the result.
    pub fn new(tensor: &Tensor) -> Result<Self> {
        let dtype = match tensor.dtype() {
            DType::F32 => capo_plugin::DType::F32,
            DType::BF16 => capo_plugin::DType::BF16,
            DType::U32 => capo_plugin::DType::U32,
            other => bail!("a tensor of {other:?} cannot be lent to components"),
        };
        let tensor = tensor.contiguous()?;
        let (address, device_id, stream) = place(&tensor)?;
        Ok(Self {
            tensor,
            address,
            device_id,
            dtype,
            stream,
        })
    }
}

impl LendTensor for Lent {
    fn lend<'a>(&'a self, shape: &'a [i64]) -> capo_plugin::Tensor<'a> {
        let len = self.tensor.elem_count();
        assert_eq!(
            shape.iter().product::<i64>(),
            len as i64,
            "shape {shape:?} does not hold {len} values"
        );
        let data = self.address as *const _;
        let stream = self.stream as *mut _;
        // SAFETY: `new` took the address of `len` contiguous elements of this dtype in the primary
        // context of this device, and the stream that wrote them. `self.tensor` keeps them alive
        // for `'a`.
        unsafe {
            capo_plugin::Tensor::from_raw(
                data,
                DeviceKind::CUDA,
                self.device_id,
                self.dtype,
                shape,
                &[],
                0,
                stream,
            )
        }
    }
}

/// Address, device number and stream of a contiguous tensor.
#[cfg(feature = "cuda")]
fn place(tensor: &Tensor) -> Result<(u64, i32, usize)> {
    use candle_core::cuda_backend::CudaStorageSlice;
    use candle_core::cuda_backend::cudarc::driver::DevicePtr;
    use candle_core::{DeviceLocation, Storage};

    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cuda(cuda), DeviceLocation::Cuda { gpu_id }) =
        (&*storage, tensor.device().location())
    else {
        bail!("a tensor outside CUDA memory cannot be lent to components");
    };
    let stream = cuda.device.cuda_stream();
    let (start, size) = match &cuda.slice {
        CudaStorageSlice::F32(slice) => (slice.device_ptr(&stream).0, 4),
        CudaStorageSlice::BF16(slice) => (slice.device_ptr(&stream).0, 2),
        CudaStorageSlice::U32(slice) => (slice.device_ptr(&stream).0, 4),
        _ => bail!("a tensor of this dtype cannot be lent to components"),
    };
    Ok((
        start + layout.start_offset() as u64 * size,
        i32::try_from(gpu_id)?,
        stream.cu_stream() as usize,
    ))
}

#[cfg(not(feature = "cuda"))]
fn place(tensor: &Tensor) -> Result<(u64, i32, usize)> {
    bail!(
        "a tensor on {:?} cannot be lent to components",
        tensor.device().location()
    )
}

/// Data of the last layer in device memory, for components to read.
pub fn layer(tensors: &LastLayerTensors, dims: Dims) -> Result<LayerBuffer> {
    let b = dims.completions as i64;
    let t = dims.tokens as i64;
    let d = tensors.hidden.dim(1)? as i64;
    let k = tensors.topk_ids.dim(1)? as i64;
    Ok(LayerBuffer {
        hidden: lent(&tensors.hidden, &[b, t, d])?,
        topk_ids: lent(&tensors.topk_ids, &[b, t, k])?,
        topk_logits: lent(&tensors.topk_logits, &[b, t, k])?,
        logsumexp: lent(&tensors.logsumexp, &[b, t])?,
        action_logits: lent(&tensors.action_logits, &[b, t])?,
        vocab_size: tensors.vocab_size,
    })
}

/// A tensor in device memory, with the extents `shape`.
fn lent(tensor: &Tensor, shape: &[i64]) -> Result<TensorBuffer> {
    let memory = Memory::Lent(Arc::new(Lent::new(tensor)?));
    Ok(TensorBuffer::new(memory, shape))
}

/// The last layer's weight and its moments in the optimizer, three f32 matrices `[V, D]` in device
/// memory.
pub fn state([weight, exp_avg, exp_avg_sq]: &[Tensor; 3]) -> Result<StateBuffer> {
    let (vocab_size, width) = weight.dims2()?;
    let shape = [vocab_size as i64, width as i64];
    Ok(StateBuffer {
        weight: lent(weight, &shape)?,
        exp_avg: lent(exp_avg, &shape)?,
        exp_avg_sq: lent(exp_avg_sq, &shape)?,
    })
}

/// Copies of these matrices in host memory.
pub fn host_state([weight, exp_avg, exp_avg_sq]: [&Tensor; 3]) -> Result<StateBuffer> {
    Ok(StateBuffer {
        weight: host_matrix(weight)?,
        exp_avg: host_matrix(exp_avg)?,
        exp_avg_sq: host_matrix(exp_avg_sq)?,
    })
}

fn host_matrix(matrix: &Tensor) -> Result<TensorBuffer> {
    let (rows, width) = matrix.dims2()?;
    let values: Vec<f32> = matrix.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
    Ok(TensorBuffer::new(values, &[rows as i64, width as i64]))
}
