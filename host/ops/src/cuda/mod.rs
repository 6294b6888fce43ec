//! The kernels of `host/ops/kernels` on candle's stream, which replace the CPU kernels of the same name. They operate
//! on logits, for which candle has no operation, or one that needs a second array of all logits.

use std::sync::OnceLock;

use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaView, LaunchConfig};
use candle_core::cuda_backend::cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use candle_core::cuda_backend::{CudaDType, CudaDevice, WrapErr};
use candle_core::{CudaStorage, Error, Layout, Result};

use super::kernel::layout_error;

mod logits;

pub(super) use logits::{draw, logit_gradient, logit_stats, top_ids};

/// Threads in every block.
const THREADS: usize = 256;
/// Largest number of ids per row that `top_ids` returns.
pub(super) const MOST_TOP: usize = 1024;
/// The translation unit, without its `#include` lines.
const SOURCES: [&str; 2] = [include_str!("../../kernels/common.cuh"), include_str!("../../kernels/logits.cuh")];

pub(super) type Arg<'a> = (&'a CudaStorage, &'a Layout);

/// The kernels as PTX, compiled once per process.
fn ptx() -> Result<&'static str> {
    static PTX: OnceLock<String> = OnceLock::new();
    if let Some(ptx) = PTX.get() {
        return Ok(ptx);
    }
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    let source: Vec<&str> =
        lines.filter(|line| !line.starts_with("#include") && !line.starts_with("#pragma")).collect();
    let options = vec!["--std=c++17".to_owned()];
    let options = CompileOptions { arch: Some("compute_80"), options, ..CompileOptions::default() };
    let ptx = compile_ptx_with_opts(source.join("\n"), options).w()?.to_src();
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
