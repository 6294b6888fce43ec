//! Kernels of what a layer does between its matrix products.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, PushKernelArg};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CudaStorage, Layout, Result, Shape, Storage, Tensor};

use super::super::kernel::layout_error;
use super::{Arg, Number, THREADS, blocks, check_len, dtype_error, kernel, upload, view, view_of};

pub(crate) fn rms_norm(x: Arg<'_>, weight: Arg<'_>, eps: f64) -> Result<(CudaStorage, Shape)> {
    fn run<T: Number>(slice: &CudaSlice<T>, x: Arg<'_>, weight: Arg<'_>, eps: f64, dtype: &str) -> Result<CudaStorage> {
        const OP: &str = "rms-norm";
        let device = x.0.device();
        let (x, weight) = (view(slice, x.1, OP)?, view_of::<T>(weight, OP)?);
        let rows = rows(OP, x.len(), weight.len())?;
        let mut out = device.alloc_zeros::<T>(x.len())?;
        let (function, width, eps) = (kernel(device, &format!("rms_norm_{dtype}"))?, weight.len() as u32, eps as f32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&x).arg(&weight).arg(&mut out).arg(&width).arg(&eps);
        // SAFETY: one block per row of `x` and `out`, each `weight.len()` wide.
        unsafe { launch.launch(blocks(rows)?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    let out = match &x.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, x, weight, eps, "f32")?,
        CudaStorageSlice::BF16(slice) => run(slice, x, weight, eps, "bf16")?,
        _ => return dtype_error(x, "rms-norm"),
    };
    Ok((out, x.1.shape().clone()))
}

/// `[2, ..]`, as the CPU kernel gives it.
pub(crate) fn rms_norm_backward(x: Arg<'_>, weight: Arg<'_>, grad: Arg<'_>, eps: f64) -> Result<(CudaStorage, Shape)> {
    fn run<T: Number>(
        slice: &CudaSlice<T>,
        [x, weight, grad]: [Arg<'_>; 3],
        eps: f64,
        dtype: &str,
    ) -> Result<CudaStorage> {
        const OP: &str = "rms-norm-backward";
        let device = x.0.device();
        let (x, weight, grad) = (view(slice, x.1, OP)?, view_of::<T>(weight, OP)?, view_of::<T>(grad, OP)?);
        let rows = rows(OP, x.len(), weight.len())?;
        check_len(OP, grad.len(), x.len())?;
        let mut out = device.alloc_zeros::<T>(2 * x.len())?;
        let function = kernel(device, &format!("rms_norm_backward_{dtype}"))?;
        let (width, eps, stream) = (weight.len() as u32, eps as f32, device.cuda_stream());
        let mut launch = stream.launch_builder(&function);
        launch.arg(&x).arg(&weight).arg(&grad).arg(&mut out).arg(&width).arg(&eps);
        // SAFETY: one block per row of `x` and `grad`, each `weight.len()` wide; `out` has two such rows for each.
        unsafe { launch.launch(blocks(rows)?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    let arguments = [x, weight, grad];
    let out = match &x.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, arguments, eps, "f32")?,
        CudaStorageSlice::BF16(slice) => run(slice, arguments, eps, "bf16")?,
        _ => return dtype_error(x, "rms-norm-backward"),
    };
    Ok((out, pair(x.1)))
}

pub(crate) fn swiglu(gate: Arg<'_>, up: Arg<'_>) -> Result<(CudaStorage, Shape)> {
    fn run<T: Number>(slice: &CudaSlice<T>, gate: Arg<'_>, up: Arg<'_>, dtype: &str) -> Result<CudaStorage> {
        const OP: &str = "swiglu";
        let device = gate.0.device();
        let (gate, up) = (view(slice, gate.1, OP)?, view_of::<T>(up, OP)?);
        check_len(OP, up.len(), gate.len())?;
        let mut out = device.alloc_zeros::<T>(gate.len())?;
        let (function, count) = (kernel(device, &format!("swiglu_{dtype}"))?, gate.len() as u64);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&gate).arg(&up).arg(&mut out).arg(&count);
        // SAFETY: one thread per element of three arrays of one length.
        unsafe { launch.launch(blocks(gate.len().div_ceil(THREADS))?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    let out = match &gate.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, gate, up, "f32")?,
        CudaStorageSlice::BF16(slice) => run(slice, gate, up, "bf16")?,
        _ => return dtype_error(gate, "swiglu"),
    };
    Ok((out, gate.1.shape().clone()))
}

/// `[2, ..]`, as the CPU kernel gives it.
pub(crate) fn swiglu_backward(gate: Arg<'_>, up: Arg<'_>, grad: Arg<'_>) -> Result<(CudaStorage, Shape)> {
    fn run<T: Number>(slice: &CudaSlice<T>, [gate, up, grad]: [Arg<'_>; 3], dtype: &str) -> Result<CudaStorage> {
        const OP: &str = "swiglu-backward";
        let device = gate.0.device();
        let (gate, up, grad) = (view(slice, gate.1, OP)?, view_of::<T>(up, OP)?, view_of::<T>(grad, OP)?);
        check_len(OP, up.len(), gate.len())?;
        check_len(OP, grad.len(), gate.len())?;
        let mut out = device.alloc_zeros::<T>(2 * gate.len())?;
        let (function, count) = (kernel(device, &format!("swiglu_backward_{dtype}"))?, gate.len() as u64);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&gate).arg(&up).arg(&grad).arg(&mut out).arg(&count);
        // SAFETY: one thread per element of three arrays of one length; `out` is twice as long.
        unsafe { launch.launch(blocks(gate.len().div_ceil(THREADS))?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    let arguments = [gate, up, grad];
    let out = match &gate.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, arguments, "f32")?,
        CudaStorageSlice::BF16(slice) => run(slice, arguments, "bf16")?,
        _ => return dtype_error(gate, "swiglu-backward"),
    };
    Ok((out, pair(gate.1)))
}

/// How a rotation goes through its argument.
pub(crate) struct Turn<'a> {
    /// Cosines and sines, `[B, 1, S, width / 2]`.
    pub(crate) angles: [&'a Tensor; 2],
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) inverse: bool,
}

/// The elements of `x` in the kernel's order; the caller knows their shape.
pub(crate) fn rotate(x: Arg<'_>, turn: &Turn<'_>) -> Result<CudaStorage> {
    fn run<T: Number>(slice: &CudaSlice<T>, x: Arg<'_>, turn: &Turn<'_>, dtype: &str) -> Result<CudaStorage> {
        const OP: &str = "rope";
        let device = x.0.device();
        let half = turn.angles[0].dims()[3];
        let (x, pairs) = (view(slice, x.1, OP)?, x.1.shape().elem_count() / 2);
        let places = turn.angles.map(Tensor::storage_and_layout);
        let [(Storage::Cuda(cosines), cos), (Storage::Cuda(sines), sin)] = places.each_ref().map(|(s, l)| (&**s, *l))
        else {
            return layout_error(OP, "the angles are on another device".to_owned());
        };
        let (cosines, sines) = (view_of::<f32>((cosines, cos), OP)?, view_of::<f32>((sines, sin), OP)?);
        check_len(OP, pairs, cosines.len() * turn.heads)?;
        check_len(OP, sines.len(), cosines.len())?;
        let mut out = device.alloc_zeros::<T>(x.len())?;
        let (function, count, inverse) =
            (kernel(device, &format!("rotate_{dtype}"))?, pairs as u64, u32::from(turn.inverse));
        let [tokens, heads, half] = [turn.tokens, turn.heads, half].map(|number| number as u32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&x).arg(&cosines).arg(&sines).arg(&mut out).arg(&count);
        launch.arg(&tokens).arg(&heads).arg(&half).arg(&inverse);
        // SAFETY: one thread per pair of `x` and `out`; there are angles for every head's tokens.
        unsafe { launch.launch(blocks(pairs.div_ceil(THREADS))?) }.w()?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
    match &x.0.slice {
        CudaStorageSlice::F32(slice) => run(slice, x, turn, "f32"),
        CudaStorageSlice::BF16(slice) => run(slice, x, turn, "bf16"),
        _ => dtype_error(x, "rope"),
    }
}

/// Adds each of the `rows` `[N, D]` to the row `ids[n]` of `sums` `[V, D]`, in the order of the rows; both f32.
pub(crate) fn add_rows(sums: (&mut CudaStorage, &Layout), rows: Arg<'_>, ids: &[u32]) -> Result<()> {
    const OP: &str = "add-rows";
    let ((count, width), (_, sums_width), device) = (rows.1.shape().dims2()?, sums.1.shape().dims2()?, rows.0.device());
    check_len(OP, ids.len(), count)?;
    check_len(OP, width, sums_width)?;
    let Some((0, _)) = sums.1.contiguous_offsets() else { return layout_error(OP, format!("{:?}", sums.1)) };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|row| ids[*row]);
    let (mut distinct, mut offsets) = (Vec::new(), Vec::new());
    for (place, row) in order.iter().enumerate() {
        if distinct.last() != Some(&(ids[*row] as usize)) {
            distinct.push(ids[*row] as usize);
            offsets.push(place);
        }
    }
    offsets.push(count);
    if distinct.last().is_some_and(|id| *id >= sums.1.dims()[0]) {
        return layout_error(OP, format!("an id is outside of {:?}", sums.1.dims()));
    }
    let (rows, out) = (view_of::<f32>(rows, OP)?, sums.0.as_cuda_slice_mut::<f32>()?);
    let (on_device, offsets, order) = (upload(device, &distinct)?, upload(device, &offsets)?, upload(device, &order)?);
    let (function, width, stream) = (kernel(device, "add_rows_f32")?, width as u32, device.cuda_stream());
    let mut launch = stream.launch_builder(&function);
    launch.arg(out).arg(&rows).arg(&on_device).arg(&offsets).arg(&order).arg(&width);
    // SAFETY: one block per distinct id, whose row lies in `sums`; `offsets` and `order` stay in `rows`.
    unsafe { launch.launch(blocks(distinct.len())?) }.w()?;
    Ok(())
}

fn rows(op: &'static str, len: usize, width: usize) -> Result<usize> {
    if width == 0 || !len.is_multiple_of(width) {
        return layout_error(op, format!("{len} numbers in rows of {width}"));
    }
    Ok(len / width)
}

fn pair(layout: &Layout) -> Shape {
    [&[2], layout.dims()].concat().into()
}
