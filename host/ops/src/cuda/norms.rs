//! RMSNorm, and sums over rows.

use candle_core::{D, DType, Result, Tensor};

use super::super::kernel::layout_error;
use super::THREADS;
use super::launch::{Launch, MOST_PARTS, unwritten};

/// Widest row that one warp takes; wider ones take a block. As in `norms.cuh`.
const WARP_WIDTH: usize = 1024;
/// Widest row of the backward kernel.
pub(crate) const WIDEST: usize = 32 * THREADS;
/// Blocks that fill a large GPU a few times over. A constant, so that sums have the same parts on
/// each machine.
const MANY: usize = 1024;
/// Most blocks of a backward pass: each writes a row of partial sums.
const MOST_BLOCKS: usize = 264;

/// Number of rows, their width, and rows that a block takes at a time.
fn sizes(x: &Tensor, weight: &Tensor) -> Result<(usize, usize, usize)> {
    let width = weight.dims1()?;
    if x.dims().last() != Some(&width) || width == 0 {
        return layout_error(
            "rms-norm",
            format!("x {:?} and weight {:?} do not fit", x.dims(), weight.dims()),
        );
    }
    Ok((
        x.elem_count() / width,
        width,
        if width <= WARP_WIDTH { THREADS / 32 } else { 1 },
    ))
}

/// RMSNorm of `x`, or of the sum of `x` and `plus`. Returns what was normed, and the result.
pub(crate) fn rms_norm(
    x: &Tensor,
    plus: Option<&Tensor>,
    weight: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let (rows, width, at_once) = sizes(x, weight)?;
    let dtype = x.dtype();
    let count = x.elem_count();
    let x = x.contiguous()?;
    let plus = plus.map(Tensor::contiguous).transpose()?;
    let weight = weight.contiguous()?;
    let sum = plus
        .as_ref()
        .map(|_| unwritten(&x, x.shape(), dtype))
        .transpose()?;
    let out = unwritten(&x, x.shape(), dtype)?;
    let launch = Launch::new("rms_norm", &x)?
        .memory(&x, dtype, count)?
        .optional(plus.as_ref(), dtype, count)?;
    let launch = launch
        .memory(&weight, dtype, width)?
        .optional(sum.as_ref(), dtype, count)?;
    let launch = launch
        .memory(&out, dtype, count)?
        .long(rows)
        .words([width])?
        .float(eps);
    // SAFETY: all but `weight`, of `width`, have rows * width elements, and the blocks cover the
    // rows.
    unsafe { launch.run(rows.div_ceil(at_once), 1) }?;
    Ok((sum.unwrap_or(x), out))
}

/// `plus` is added to the gradient by `x`. Rows may be `WIDEST` wide.
pub(crate) fn rms_norm_backward(
    x: &Tensor,
    weight: &Tensor,
    grad: &Tensor,
    eps: f64,
    plus: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (rows, width, at_once) = sizes(x, weight)?;
    let dtype = x.dtype();
    let count = x.elem_count();
    let x = x.contiguous()?;
    let weight = weight.contiguous()?;
    let grad = grad.contiguous()?;
    let plus = plus.map(Tensor::contiguous).transpose()?;
    if rows == 0 || width > WIDEST {
        return layout_error(
            "rms-norm-backward",
            format!("{rows} rows of {width}, at least one of at most {WIDEST}"),
        );
    }
    let blocks = rows.div_ceil(at_once).min(MOST_BLOCKS);
    let dx = unwritten(&x, x.shape(), dtype)?;
    let partial = unwritten(&x, (blocks, width), DType::F32)?;
    let launch = Launch::new("rms_norm_backward", &x)?
        .memory(&x, dtype, count)?
        .memory(&weight, dtype, width)?;
    let launch = launch
        .memory(&grad, dtype, count)?
        .optional(plus.as_ref(), dtype, count)?
        .memory(&dx, dtype, count)?;
    let launch = launch
        .memory(&partial, DType::F32, blocks * width)?
        .long(rows)
        .words([width])?
        .float(eps);
    // SAFETY: all but `weight` and `partial` have rows * width elements; each block writes its row
    // of `partial`.
    unsafe { launch.run(blocks, 1) }?;
    Ok((dx, sum_to(&partial, 1, dtype)?.reshape(width)?))
}

/// Sums of the rows of `x` `[.., W]`, as `[W]`.
pub(crate) fn sum_rows(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let rows = x.elem_count() / width.max(1);
    let x = x.contiguous()?;
    let parts = MANY
        .div_ceil(width.div_ceil(32))
        .min(rows.div_ceil(64))
        .min(MOST_PARTS);
    if rows == 0 || width == 0 {
        return Tensor::zeros(width, x.dtype(), x.device());
    }
    let parts = sum_to(&x.reshape((rows, width))?, parts, DType::F32)?;
    if parts.dim(0)? == 1 && x.dtype() == DType::F32 {
        return parts.reshape(width);
    }
    sum_to(&parts, 1, x.dtype())?.reshape(width)
}

/// Sums of up to `parts` equal runs of rows of `x` `[N, W]`, as `[parts, W]`.
fn sum_to(x: &Tensor, parts: usize, dtype: DType) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let length = rows.div_ceil(parts);
    let parts = rows.div_ceil(length);
    let out = unwritten(x, (parts, width), dtype)?;
    let launch = match dtype {
        DType::F32 => Launch::new("sum_rows", x),
        _ => Launch::new("sum_rows_to", &out),
    }?;
    let launch = launch
        .memory(x, x.dtype(), rows * width)?
        .memory(&out, dtype, parts * width)?;
    let launch = launch.long(rows).words([width])?.long(length);
    // SAFETY: the grid covers columns and parts; each part has `length` rows of `x`, the last one
    // what is left. Only f32 is summed to bf16.
    unsafe { launch.run(width.div_ceil(32), parts) }?;
    Ok(out)
}
