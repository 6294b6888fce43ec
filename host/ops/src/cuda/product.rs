//! Products of bf16 matrices whose results are f32: candle's own are rounded to bf16.

use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::{DType, Result, Tensor};

use super::super::kernel::layout_error;
use super::launch::{address, device_of, unwritten};

/// `a b` in f32, for `a` `[M, R]` and `b` `[R, N]` in bf16.
pub(crate) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let sum = unwritten(a, (a.dim(0)?, b.dim(1)?), DType::F32)?;
    multiply(a, b, &sum, 0.0)?;
    Ok(sum)
}

/// Adds `a b` to `sum` `[M, N]`, contiguous f32, which must not be shared.
pub(crate) fn add_product(sum: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    multiply(a, b, sum, 1.0)
}

/// `sum = a b + kept sum`.
fn multiply(a: &Tensor, b: &Tensor, sum: &Tensor, kept: f32) -> Result<()> {
    let (rows, inner) = a.dims2()?;
    let (same, columns) = b.dims2()?;
    let dtypes = [a, b, sum].map(Tensor::dtype);
    let fits = inner == same && sum.dims() == [rows, columns] && sum.is_contiguous();
    if !fits || dtypes != [DType::BF16, DType::BF16, DType::F32] {
        return layout_error(
            "product",
            format!(
                "{:?} and {:?} do not give {:?}",
                a.dims(),
                b.dims(),
                sum.dims()
            ),
        );
    }
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let [(a, line_a, turned_a), (b, line_b, turned_b)] = [lines(a)?, lines(b)?];
    let [rows, columns, inner, line_a, line_b] = sizes([rows, columns, inner, line_a, line_b])?;
    let device = device_of(sum)?;
    let cublas = device.cublas_handle();
    let stream = device.cuda_stream();
    let [
        (a_storage, a_layout),
        (b_storage, b_layout),
        (storage, layout),
    ] = [&a, &b, sum].map(Tensor::storage_and_layout);
    let (a, _a_used) = address(&a_storage, a_layout, &stream)?;
    let (b, _b_used) = address(&b_storage, b_layout, &stream)?;
    let (out, _out_used) = address(&storage, layout, &stream)?;

    let bf16 = sys::cudaDataType_t::CUDA_R_16BF;
    let f32 = sys::cudaDataType_t::CUDA_R_32F;
    let one = 1.0f32;
    // cuBLAS reads matrices column by column, so to it all of them are transposed, the product too.
    // SAFETY: the addresses are of matrices of these sizes on the handle's device, and the storages
    // stay locked until the product is on the stream, on which they are freed. The factors of the
    // sum are f32, as the compute type asks.
    let status = unsafe {
        result::gemm_strided_batched_ex(
            *cublas.handle(),
            operation(turned_b),
            operation(turned_a),
            columns,
            rows,
            inner,
            (&raw const one).cast(),
            b as *const _,
            bf16,
            line_b,
            0,
            a as *const _,
            bf16,
            line_a,
            0,
            (&raw const kept).cast(),
            out as *mut _,
            f32,
            columns,
            0,
            1,
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    };
    status.map_err(candle_core::Error::wrap)
}

fn operation(turned: bool) -> sys::cublasOperation_t {
    if turned {
        sys::cublasOperation_t::CUBLAS_OP_T
    } else {
        sys::cublasOperation_t::CUBLAS_OP_N
    }
}

/// A matrix whose rows, or whose columns, each lie together; the distance between them; and true if
/// it is the columns.
fn lines(x: &Tensor) -> Result<(Tensor, usize, bool)> {
    let (rows, columns) = x.dims2()?;
    match *x.stride() {
        [line, 1] if line >= columns => Ok((x.clone(), line.max(1), false)),
        [1, line] if line >= rows => Ok((x.clone(), line.max(1), true)),
        _ => Ok((x.contiguous()?, columns.max(1), false)),
    }
}

fn sizes<const N: usize>(values: [usize; N]) -> Result<[i32; N]> {
    let mut narrow = [0; N];
    for (to, value) in narrow.iter_mut().zip(values) {
        let Ok(value) = i32::try_from(value) else {
            return layout_error(
                "product",
                format!("{value} rows or columns are too many (use a smaller batch)"),
            );
        };
        *to = value;
    }
    Ok(narrow)
}
