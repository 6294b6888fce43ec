//! The kernels of `host/ops/kernels` on candle's stream, in f32 and bf16. They replace the CPU
//! kernels of the same names.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaView, LaunchConfig};
use candle_core::{CudaDevice, CudaStorage, DType, Error, Layout, Result, Tensor};

use super::kernel::layout_error;

mod attention;
mod elementwise;
mod image;
mod launch;
mod logits;
mod norms;
mod optimizer;
mod product;
mod rope;
mod rows;

pub(super) use attention::{
    attends, attention, attention_backward, decode_attention, decode_heads,
};
pub(super) use elementwise::{add, add_bias, swiglu, swiglu_backward};
pub use image::{are_kernels_kept, load_kernels};
pub(super) use logits::{draw, logit_gradient, logit_stats, top_ids};
pub(super) use norms::{WIDEST, rms_norm, rms_norm_backward, sum_rows};
pub(super) use optimizer::{adamw, narrowed, squares};
pub(super) use product::{add_product, product};
pub(super) use rope::{Turn, move_heads};
pub(super) use rows::add_rows;

/// Threads in every block.
const THREADS: usize = 256;
/// Largest number of ids per row that `top_ids` returns.
pub(super) const MOST_TOP: usize = 1024;

/// True if there are kernels for `x`.
pub(super) fn takes(x: &Tensor) -> bool {
    #[cfg(feature = "testing")]
    if super::forced::GENERIC.get() {
        return false;
    }
    x.device().is_cuda() && matches!(x.dtype(), DType::F32 | DType::BF16)
}

/// An argument of an operation, as candle passes it.
#[derive(Clone, Copy)]
pub(super) struct Arg<'a> {
    storage: &'a CudaStorage,
    layout: &'a Layout,
}

impl<'a> Arg<'a> {
    pub(super) fn new(storage: &'a CudaStorage, layout: &'a Layout) -> Self {
        Self { storage, layout }
    }

    /// Sizes of the two axes of a matrix.
    fn dims2(self) -> Result<(usize, usize)> {
        self.layout.shape().dims2()
    }

    fn device(self) -> &'a CudaDevice {
        self.storage.device()
    }
}

fn blocks(count: usize) -> Result<LaunchConfig> {
    let Ok(count) = u32::try_from(count) else {
        return layout_error(
            "a kernel",
            format!("{count} blocks are too many (use a smaller batch)"),
        );
    };
    Ok(LaunchConfig {
        grid_dim: (count, 1, 1),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: 0,
    })
}

/// The elements of a contiguous layout; any other layout is the caller's error.
fn view_of<'a, T: CudaDType>(arg: Arg<'a>, op: &'static str) -> Result<CudaView<'a, T>> {
    match arg.layout.contiguous_offsets() {
        Some((from, to)) => Ok(arg.storage.as_cuda_slice::<T>()?.slice(from..to)),
        None => Err(Error::RequiresContiguous { op }),
    }
}

/// The elements of a contiguous layout, on the host.
pub(super) fn to_host(arg: Arg<'_>, op: &'static str) -> Result<Vec<f32>> {
    arg.device().clone_dtoh(&view_of::<f32>(arg, op)?)
}

fn check_len(op: &'static str, len: usize, expected: usize) -> Result<()> {
    if len == expected {
        Ok(())
    } else {
        layout_error(op, format!("{len} numbers, expected {expected}"))
    }
}
