//! Kernels of attention.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, PushKernelArg};
use candle_core::cuda_backend::{CudaDevice, CudaStorageSlice, WrapErr};
use candle_core::{CudaStorage, Error, Layout, Result, Shape};

use super::super::decode_rows::{DecodeRows, MOST_WIDTH};
use super::super::kernel::layout_error;
use super::{Arg, Number, THREADS, blocks, check_len, dtype_error, kernel, upload, view, view_of};

pub(crate) fn causal_softmax(scores: Arg<'_>, starts: &[usize], scale: f64) -> Result<(CudaStorage, Shape)> {
    fn run<T: Number>(scores: &CudaSlice<T>, place: Place<'_>, dtype: &str) -> Result<CudaStorage> {
        let Place { layout, device, starts, scale } = place;
        let (scores, mut out) =
            (view(scores, layout, "causal-softmax")?, device.alloc_zeros::<T>(layout.shape().elem_count())?);
        let Launch { lines, heads, queries, tokens } = Launch::of(layout)?;
        let (function, starts) = (kernel(device, &format!("causal_softmax_{dtype}"))?, upload(device, starts)?);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&scores).arg(&starts).arg(&mut out).arg(&heads).arg(&queries).arg(&tokens).arg(&scale);
        // SAFETY: one block per line of `scores` and `out` [starts, heads, queries, tokens], as `Place::new` checked.
        unsafe { launch.launch(blocks(lines)?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    let place = Place::new(scores, starts, scale)?;
    let out = match &scores.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, place, "f32")?,
        CudaStorageSlice::BF16(slice) => run(slice, place, "bf16")?,
        _ => return dtype_error(scores, "causal-softmax"),
    };
    Ok((out, scores.1.shape().clone()))
}

pub(crate) fn causal_softmax_backward(
    weights: Arg<'_>,
    grad: Arg<'_>,
    starts: &[usize],
    scale: f64,
) -> Result<(CudaStorage, Shape)> {
    fn run<T: Number>(weights: &CudaSlice<T>, grad: Arg<'_>, place: Place<'_>, dtype: &str) -> Result<CudaStorage> {
        const OP: &str = "causal-softmax-backward";
        let Place { layout, device, starts, scale } = place;
        let (weights, grad) = (view(weights, layout, OP)?, view_of::<T>(grad, OP)?);
        check_len(OP, grad.len(), weights.len())?;
        let mut out = device.alloc_zeros::<T>(weights.len())?;
        let Launch { lines, heads, queries, tokens } = Launch::of(layout)?;
        let (function, starts) =
            (kernel(device, &format!("causal_softmax_backward_{dtype}"))?, upload(device, starts)?);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&weights).arg(&grad).arg(&starts).arg(&mut out).arg(&heads).arg(&queries).arg(&tokens).arg(&scale);
        // SAFETY: one block per line of `weights`, `grad` and `out` [starts, heads, queries, tokens].
        unsafe { launch.launch(blocks(lines)?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    let place = Place::new(weights, starts, scale)?;
    let out = match &weights.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, grad, place, "f32")?,
        CudaStorageSlice::BF16(slice) => run(slice, grad, place, "bf16")?,
        _ => return dtype_error(weights, "causal-softmax-backward"),
    };
    Ok((out, weights.1.shape().clone()))
}

/// The sizes of a softmax's kernel.
struct Launch {
    /// Blocks, one per query.
    lines: usize,
    heads: u32,
    queries: u32,
    tokens: u32,
}

impl Launch {
    fn of(layout: &Layout) -> Result<Self> {
        let (rows, heads, queries, tokens) = layout.shape().dims4()?;
        let lines = rows * heads * queries;
        Ok(Self { lines, heads: heads as u32, queries: queries as u32, tokens: tokens as u32 })
    }
}

/// What a softmax needs besides its numbers.
struct Place<'a> {
    layout: &'a Layout,
    device: &'a CudaDevice,
    starts: &'a [usize],
    scale: f32,
}

impl<'a> Place<'a> {
    fn new(scores: Arg<'a>, starts: &'a [usize], scale: f64) -> Result<Self> {
        match scores.1.dims() {
            &[rows, _, queries, keys] if rows == starts.len() && queries == keys => {}
            other => {
                return layout_error("causal-softmax", format!("scores {other:?} do not fit {} starts", starts.len()));
            }
        }
        Ok(Self { layout: scores.1, device: scores.0.device(), starts, scale: scale as f32 })
    }
}

pub(crate) fn append_to_cache(cache: (&mut CudaStorage, &Layout), new: Arg<'_>, rows: &DecodeRows) -> Result<()> {
    fn run<T: Number>(
        cache: &mut CudaSlice<T>,
        layout: &Layout,
        new: Arg<'_>,
        rows: &DecodeRows,
        dtype: &str,
    ) -> Result<()> {
        const OP: &str = "append-to-cache";
        let ((all, heads, tokens, width), device) = (layout.shape().dims4()?, new.0.device());
        let new = view_of::<T>(new, OP)?;
        check_rows(OP, rows, all, tokens)?;
        check_len(OP, new.len(), rows.cache_rows.len() * heads * width)?;
        let Some((0, _)) = layout.contiguous_offsets() else { return Err(Error::RequiresContiguous { op: OP }) };
        let (function, cache_rows) =
            (kernel(device, &format!("append_to_cache_{dtype}"))?, upload(device, &rows.cache_rows)?);
        let [count, heads, tokens, width, index] =
            [new.len(), heads, tokens, width, rows.index].map(|number| number as u32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(cache).arg(&new).arg(&cache_rows).arg(&count).arg(&heads).arg(&tokens).arg(&width).arg(&index);
        // SAFETY: one thread per element of `new`; rows and index lie in `cache` [all, heads, tokens, width].
        unsafe { launch.launch(blocks(new.len().div_ceil(THREADS))?) }.w()?;
        Ok(())
    }
    match &mut cache.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, cache.1, new, rows, "f32"),
        CudaStorageSlice::BF16(slice) => run(slice, cache.1, new, rows, "bf16"),
        _ => dtype_error(new, "append-to-cache"),
    }
}

pub(crate) fn decode_attention(
    queries: Arg<'_>,
    keys: Arg<'_>,
    values: Arg<'_>,
    rows: &DecodeRows,
) -> Result<(CudaStorage, Shape)> {
    fn run<T: Number>(
        queries: CudaView<'_, T>,
        keys: Arg<'_>,
        values: Arg<'_>,
        rows: &DecodeRows,
        dtype: &str,
    ) -> Result<CudaStorage> {
        const OP: &str = "decode-attention";
        let ((all, kv_heads, tokens, width), device) = (keys.1.shape().dims4()?, keys.0.device());
        check_rows(OP, rows, all, tokens)?;
        let group = queries.len() / (rows.cache_rows.len() * kv_heads * width).max(1);
        check_len(OP, queries.len(), rows.cache_rows.len() * kv_heads * group * width)?;
        if width > MOST_WIDTH || keys.1.shape() != values.1.shape() {
            return layout_error(OP, format!("keys {:?} and values {:?}", keys.1.dims(), values.1.dims()));
        }
        let (keys, values) = (view_of::<T>(keys, OP)?, view_of::<T>(values, OP)?);
        let mut out = device.alloc_zeros::<T>(queries.len())?;
        let heads = queries.len() / width;
        let (cache_rows, starts) = (upload(device, &rows.cache_rows)?, upload(device, &rows.starts)?);
        let function = kernel(device, &format!("decode_attention_{dtype}"))?;
        let scale = 1.0 / (width as f32).sqrt();
        let [kv_heads, group, tokens, width, index] =
            [kv_heads, group, tokens, width, rows.index].map(|number| number as u32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&queries).arg(&keys).arg(&values).arg(&cache_rows).arg(&starts).arg(&mut out);
        launch.arg(&kv_heads).arg(&group).arg(&tokens).arg(&width).arg(&index).arg(&scale);
        // SAFETY: one block per query of `width` elements; rows and index lie in `keys` and `values` [all, kv_heads, tokens, width].
        unsafe { launch.launch(blocks(heads)?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    const OP: &str = "decode-attention";
    let out = match &queries.0.slice {
        CudaStorageSlice::F32(slice) => run(view(slice, queries.1, OP)?, keys, values, rows, "f32")?,
        CudaStorageSlice::BF16(slice) => run(view(slice, queries.1, OP)?, keys, values, rows, "bf16")?,
        _ => return dtype_error(queries, OP),
    };
    Ok((out, queries.1.shape().clone()))
}

fn check_rows(op: &'static str, rows: &DecodeRows, all: usize, tokens: usize) -> Result<()> {
    let fits = rows.index < tokens && rows.starts.len() == rows.cache_rows.len();
    if fits && rows.cache_rows.iter().all(|row| *row < all) && rows.starts.iter().all(|start| *start <= rows.index) {
        return Ok(());
    }
    layout_error(op, format!("{rows:?} do not fit a cache of {all} rows and {tokens} tokens"))
}
