//! Tensors that components read without a copy, in host memory or on the policy's device.

use anyhow::{Result, bail};
use candle_core::{DType, Tensor};
use capo_plugin::{DeviceKind, LastLayer, OptimizerState};
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

    /// The tensor as components see it, with the extents `shape`.
    ///
    /// # Panics
    ///
    /// When `shape` does not multiply to the number of values.
    pub fn view<'a>(&'a self, shape: &'a [i64]) -> capo_plugin::Tensor<'a> {
        let len = self.tensor.elem_count();
        assert_eq!(
            shape.iter().product::<i64>(),
            len as i64,
            "shape {shape:?} does not hold {len} values"
        );
        let (data, stream) = (self.address as *const _, self.stream as *mut _);
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

    /// A copy in host memory, as f32.
    fn to_host(&self) -> Result<Vec<f32>> {
        Ok(self.tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?)
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
#[derive(Debug, Clone)]
pub struct LentLayer {
    /// Hidden states, the top tokens' ids and logits, `logsumexp` and the sampled tokens' logits.
    tensors: [Lent; 5],
    vocab_size: usize,
}

impl LentLayer {
    pub fn new(layer: &LastLayerTensors) -> Result<Self> {
        let LastLayerTensors {
            hidden,
            topk_ids,
            topk_logits,
            logsumexp,
            action_logits,
            vocab_size,
            ..
        } = layer;
        let [hidden, topk_ids, topk_logits] = [
            Lent::new(hidden)?,
            Lent::new(topk_ids)?,
            Lent::new(topk_logits)?,
        ];
        let tensors = [
            hidden,
            topk_ids,
            topk_logits,
            Lent::new(logsumexp)?,
            Lent::new(action_logits)?,
        ];
        Ok(Self {
            tensors,
            vocab_size: *vocab_size,
        })
    }

    /// The data as components see them, with the extents `[B, T, D]`, `[B, T, K]` and `[B, T]`.
    pub fn view<'a>(
        &'a self,
        hidden: &'a [i64],
        topk: &'a [i64],
        tokens: &'a [i64],
    ) -> LastLayer<'a> {
        let shapes = [hidden, topk, topk, tokens, tokens];
        let [hidden, ids, logits, logsumexp, action] =
            std::array::from_fn(|i| self.tensors[i].view(shapes[i]));
        LastLayer::new(hidden, ids, logits, logsumexp, action, self.vocab_size)
    }
}

/// The last layer's weight and its moments in the optimizer.
#[derive(Debug, Clone)]
pub struct HeadState {
    /// `weight`, `exp_avg` and `exp_avg_sq`, `[V, D]` each.
    matrices: [Matrix; 3],
    /// The extents V and D.
    shape: [i64; 2],
}

/// An f32 matrix in host or device memory.
#[derive(Debug, Clone)]
enum Matrix {
    Host(Vec<f32>),
    Device(Lent),
}

impl Matrix {
    /// A snapshot of `tensor`, which later updates do not change.
    fn new(tensor: &Tensor) -> Result<Self> {
        if tensor.device().is_cpu() {
            return Ok(Self::Host(tensor.flatten_all()?.to_vec1()?));
        }
        Ok(Self::Device(Lent::new(&tensor.copy()?)?))
    }

    fn view<'a>(&'a self, shape: &'a [i64]) -> capo_plugin::Tensor<'a> {
        match self {
            Self::Host(values) => capo_plugin::Tensor::from_f32(values, shape),
            Self::Device(lent) => lent.view(shape),
        }
    }
}

impl HeadState {
    /// A snapshot of three f32 matrices `[V, D]`.
    pub fn new(weight: &Tensor, exp_avg: &Tensor, exp_avg_sq: &Tensor) -> Result<Self> {
        let (vocab_size, width) = weight.dims2()?;
        let matrices = [
            Matrix::new(weight)?,
            Matrix::new(exp_avg)?,
            Matrix::new(exp_avg_sq)?,
        ];
        Ok(Self {
            matrices,
            shape: [vocab_size as i64, width as i64],
        })
    }

    /// The three matrices as components see them.
    pub fn view(&self) -> OptimizerState<'_> {
        let [weight, exp_avg, exp_avg_sq] = self
            .matrices
            .each_ref()
            .map(|matrix| matrix.view(&self.shape));
        OptimizerState::new(weight, exp_avg, exp_avg_sq)
    }

    /// True if all three matrices are in host memory.
    pub fn is_on_host(&self) -> bool {
        self.matrices
            .iter()
            .all(|matrix| matches!(matrix, Matrix::Host(_)))
    }

    /// A copy with all three matrices in host memory.
    pub fn to_host(&self) -> Result<Self> {
        let mut copy = self.clone();
        for matrix in &mut copy.matrices {
            if let Matrix::Device(lent) = matrix {
                *matrix = Matrix::Host(lent.to_host()?);
            }
        }
        Ok(copy)
    }
}
