//! Kernels with one block per row of logits.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{CudaStorage, DType, Result, Shape, Tensor};

use super::super::kernel::layout_error;
use super::image::kernel;
use super::launch::{Launch, unwritten};
use super::{Arg, MOST_TOP, blocks, check_len, view_of};

pub(crate) fn logit_stats(
    logits: Arg<'_>,
    targets: Arg<'_>,
    temperature: f64,
) -> Result<(CudaStorage, Shape)> {
    const OP: &str = "logit-stats";
    let (rows, vocab) = logits.dims2()?;
    let device = logits.device();
    let logits = view_of::<f32>(logits, OP)?;
    let targets = view_of::<u32>(targets, OP)?;
    check_len(OP, targets.len(), rows)?;
    let mut out = device.alloc_zeros::<f32>(4 * rows)?;
    let function = kernel(device, "logit_stats_f32")?;
    let vocab = vocab as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch
        .arg(&logits)
        .arg(&targets)
        .arg(&mut out)
        .arg(&vocab)
        .arg(&temperature);
    // SAFETY: one block per row of `logits` [rows, vocab]; `targets` has `rows` ids, which
    // `Sequences::check` bounded, `out` 4 * rows.
    unsafe { launch.launch(blocks(rows)?) }.w()?;
    Ok((
        CudaStorage::wrap_cuda_slice(out, device.clone()),
        (rows, 4).into(),
    ))
}

pub(crate) fn logit_gradient(
    logits: &Tensor,
    targets: &Tensor,
    d_logps: &Tensor,
    temperature: f64,
    dtype: DType,
) -> Result<Tensor> {
    let (rows, vocab) = logits.dims2()?;
    let name = if dtype == DType::BF16 {
        "logit_gradient_to_bf16"
    } else {
        "logit_gradient_f32"
    };
    let out = unwritten(
        logits,
        logits.shape(),
        if dtype == DType::BF16 {
            dtype
        } else {
            DType::F32
        },
    )?;
    let launch =
        Launch::named(name.to_owned(), logits)?.memory(logits, DType::F32, rows * vocab)?;
    let launch = launch
        .memory(targets, DType::U32, rows)?
        .memory(d_logps, DType::F32, rows)?;
    let launch = launch
        .memory(&out, out.dtype(), rows * vocab)?
        .words([vocab])?
        .double(temperature);
    // SAFETY: one block per row of `logits` and `out` [rows, vocab]; `targets` and `d_logps` have
    // `rows` elements.
    unsafe { launch.run(rows, 1) }?;
    out.to_dtype(dtype)
}

/// `k` must not exceed the number of logits per row, nor `MOST_TOP`.
pub(crate) fn top_ids(logits: Arg<'_>, k: usize) -> Result<(CudaStorage, Shape)> {
    const OP: &str = "top-ids";
    let (rows, vocab) = logits.dims2()?;
    let device = logits.device();
    let logits = view_of::<f32>(logits, OP)?;
    if k == 0 || k > vocab.min(MOST_TOP) {
        return layout_error(OP, format!("{k} ids of {vocab}"));
    }
    let mut out = device.alloc_zeros::<u32>(rows * k)?;
    let function = kernel(device, "top_ids_f32")?;
    let width = vocab as u32;
    let count = k as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch.arg(&logits).arg(&mut out).arg(&width).arg(&count);
    // SAFETY: one block per row of `logits` [rows, vocab] and of `out` [rows, k], with k in the
    // kernel's bounds.
    unsafe { launch.launch(blocks(rows)?) }.w()?;
    Ok((
        CudaStorage::wrap_cuda_slice(out, device.clone()),
        (rows, k).into(),
    ))
}

pub(crate) fn draw(
    logits: Arg<'_>,
    uniform: Arg<'_>,
    temperature: f64,
) -> Result<(CudaStorage, Shape)> {
    const OP: &str = "draw";
    let (rows, vocab) = logits.dims2()?;
    let device = logits.device();
    let logits = view_of::<f32>(logits, OP)?;
    let uniform = view_of::<f64>(uniform, OP)?;
    check_len(OP, uniform.len(), rows)?;
    let mut out = device.alloc_zeros::<u32>(rows)?;
    let function = kernel(device, "draw_f32")?;
    let vocab = vocab as u32;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&function);
    launch
        .arg(&logits)
        .arg(&uniform)
        .arg(&mut out)
        .arg(&vocab)
        .arg(&temperature);
    // SAFETY: one block per row of `logits` [rows, vocab]; `uniform` and `out` have `rows`
    // elements.
    unsafe { launch.launch(blocks(rows)?) }.w()?;
    Ok((
        CudaStorage::wrap_cuda_slice(out, device.clone()),
        rows.into(),
    ))
}
