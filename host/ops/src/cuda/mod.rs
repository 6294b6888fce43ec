//! The kernels of `host/ops/kernels` on candle's stream, in f32 and bf16. They replace the CPU
//! kernels of the same names.

use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{CudaView, LaunchConfig};
use candle_core::{CudaStorage, DType, Error, Layout, Result, Tensor};

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

/// True if the kernels take `x`.
pub(super) fn takes(x: &Tensor) -> bool {
    #[cfg(feature = "testing")]
    if super::testing::GENERIC.get() {
        return false;
    }
    x.device().is_cuda() && matches!(x.dtype(), DType::F32 | DType::BF16)
}

pub(super) type Arg<'a> = (&'a CudaStorage, &'a Layout);

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
fn view_of<'a, T: CudaDType>(
    (storage, layout): Arg<'a>,
    op: &'static str,
) -> Result<CudaView<'a, T>> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(storage.as_cuda_slice::<T>()?.slice(from..to)),
        None => Err(Error::RequiresContiguous { op }),
    }
}

/// The elements of a contiguous layout, on the host.
pub(super) fn to_host(arg: Arg<'_>, op: &'static str) -> Result<Vec<f32>> {
    arg.0.device.clone_dtoh(&view_of::<f32>(arg, op)?)
}

fn check_len(op: &'static str, len: usize, expected: usize) -> Result<()> {
    if len == expected {
        Ok(())
    } else {
        layout_error(op, format!("{len} numbers, expected {expected}"))
    }
}
