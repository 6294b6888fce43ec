//! The kernels of `host/ops/kernels` on candle's stream, in f32 and bf16. They replace the CPU kernels of the same names.

use std::path::PathBuf;
use std::sync::OnceLock;

use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaView, LaunchConfig, sys};
use candle_core::cuda_backend::cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use candle_core::cuda_backend::{CudaDType, CudaDevice, WrapErr};
use candle_core::{CudaStorage, DType, Error, Layout, Result, Tensor};

use super::kernel::layout_error;
use super::kernels::{self, OPTIONS};

mod attention;
mod elementwise;
mod launch;
mod logits;
mod norms;
mod optimizer;
mod product;
mod rope;
mod rows;

pub(super) use attention::{attends, attention, attention_backward, decode_attention, decode_heads};
pub(super) use elementwise::{add, add_bias, swiglu, swiglu_backward};
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
/// The translation unit, without its `#include` lines.
const SOURCES: [&str; 11] = [
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/logits.cuh"),
    include_str!("../../kernels/elementwise.cuh"),
    include_str!("../../kernels/norms.cuh"),
    include_str!("../../kernels/rope.cuh"),
    include_str!("../../kernels/attention.cuh"),
    include_str!("../../kernels/matrix.cuh"),
    include_str!("../../kernels/attention_bf16.cuh"),
    include_str!("../../kernels/decode.cuh"),
    include_str!("../../kernels/add_rows.cuh"),
    include_str!("../../kernels/optimizer.cuh"),
];

/// True if the kernels take `x`.
pub(super) fn takes(x: &Tensor) -> bool {
    #[cfg(feature = "testing")]
    if super::testing::GENERIC.get() {
        return false;
    }
    x.device().is_cuda() && matches!(x.dtype(), DType::F32 | DType::BF16)
}

pub(super) type Arg<'a> = (&'a CudaStorage, &'a Layout);

const ARCHITECTURE: &str = "compute_80";

/// The kernels as one unit.
fn source() -> String {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    lines.filter(|line| !line.starts_with("#include")).collect::<Vec<_>>().join("\n")
}

/// Where the PTX is kept. An older driver may not know what a newer compiler wrote, so its version is in the name.
fn file() -> Option<PathBuf> {
    let mut driver = 0;
    // SAFETY: the driver writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result().ok()?;
    kernels::file(&[&source(), &OPTIONS.concat(), ARCHITECTURE, &driver.to_string()])
}

/// The kernels' PTX, once it is there.
static PTX: OnceLock<String> = OnceLock::new();

/// True if the kernels are compiled already, by this process or by one that kept them.
pub fn are_kernels_kept() -> bool {
    PTX.get().is_some() || file().is_some_and(|file| kernels::kept(&file).is_some())
}

/// Compiles the kernels, if they are not kept, and keeps them.
pub fn compile_kernels() -> Result<()> {
    ptx().map(|_| ())
}

/// The kernels as PTX, compiled once for a machine.
fn ptx() -> Result<&'static str> {
    if let Some(ptx) = PTX.get() {
        return Ok(ptx);
    }
    let file = file();
    if let Some(kept) = file.as_deref().and_then(kernels::kept) {
        return Ok(PTX.get_or_init(|| kept));
    }
    let options = OPTIONS.map(str::to_owned).to_vec();
    let options = CompileOptions { arch: Some(ARCHITECTURE), options, ..CompileOptions::default() };
    let ptx = compile_ptx_with_opts(source(), options).w()?.to_src();
    // Where nothing can be kept, the next start compiles again.
    let _ = file.map(|file| kernels::keep(&file, &ptx));
    Ok(PTX.get_or_init(|| ptx))
}

fn kernel(device: &CudaDevice, name: &str) -> Result<CudaFunction> {
    Ok(device.get_or_load_custom_func(name, "host", ptx()?)?.into_cuda_function())
}

fn blocks(count: usize) -> Result<LaunchConfig> {
    let Ok(count) = u32::try_from(count) else {
        return layout_error("a kernel", format!("{count} blocks are too many (use a smaller batch)"));
    };
    Ok(LaunchConfig { grid_dim: (count, 1, 1), block_dim: (THREADS as u32, 1, 1), shared_mem_bytes: 0 })
}

/// The elements of a contiguous layout; any other layout is the caller's error.
fn view_of<'a, T: CudaDType>((storage, layout): Arg<'a>, op: &'static str) -> Result<CudaView<'a, T>> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(storage.as_cuda_slice::<T>()?.slice(from..to)),
        None => Err(Error::RequiresContiguous { op }),
    }
}

fn check_len(op: &'static str, len: usize, expected: usize) -> Result<()> {
    if len == expected { Ok(()) } else { layout_error(op, format!("{len} numbers, expected {expected}")) }
}
