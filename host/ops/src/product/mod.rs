//! Matrix products on the CPU, with the instructions that the processor has: AMX, AVX512-BF16, or
//! those of the matrix library.
//!
//! Numbers of bf16 are multiplied exactly and summed in f32. Products of f32 are left to the matrix
//! library.
//!
//! The instructions add in orders of their own, so results differ in their last bits from one to
//! the other. The number of threads changes no bit. The number of rows changes none in tiles, and
//! in f32 where `by_row` computes. Products of bf16 below 1.2e-38 count as 0.

mod few_rows;
mod instructions;
mod library;
mod multiply;
pub mod operand;
mod pack;
pub mod tile;
#[cfg(any(target_arch = "x86_64", feature = "testing"))]
mod vectors;

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};
use half::bf16;

use super::kernel::{dtype_error, layout_error};
use super::to_dtype;
pub use few_rows::Packed;
pub(crate) use few_rows::products_with_packed;
#[cfg(feature = "testing")]
pub use instructions::INSTRUCTIONS;
pub use instructions::Instructions;
pub(crate) use library::{in_f32, in_parts, part_of};
use multiply::{Pair, Sizes};
use pack::{Matrix, Values};

const NAME: &str = "product";

/// Fails if the environment names instructions that this processor lacks. Small products would not
/// notice.
pub fn check_instructions() -> Result<()> {
    Instructions::of_this_machine().map(|_| ())
}

/// [`product`] in the dtype of `a`.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    product(a, b, a.dtype())
}

/// `a b` for `a` `[.., M, R]` and `b` `[.., R, N]`, in the dtype `out`. If one of them is bf16 on
/// the CPU, both are rounded to bf16; on a GPU `b` is rounded to the dtype of `a`. Sums of bf16 are
/// f32.
pub fn product(a: &Tensor, b: &Tensor, out: DType) -> Result<Tensor> {
    product_by(in_f32, a, b, out)
}

/// [`product`] that calls `in_f32` for products of f32.
pub(crate) fn product_by(
    in_f32: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    a: &Tensor,
    b: &Tensor,
    out: DType,
) -> Result<Tensor> {
    let here = a.device().is_cpu() && matches!(out, DType::F32 | DType::BF16);
    if here && [a.dtype(), b.dtype()].contains(&DType::BF16) {
        let instructions = Instructions::of_this_machine()?;
        if instructions == Instructions::F32 {
            return to_dtype(&in_f32(&rounded(a)?, &rounded(b)?)?, out);
        }
        return in_tiles(instructions, a, b, out);
    }
    #[cfg(feature = "cuda")]
    if widens(a, out) {
        return super::cuda::product(a, &b.to_dtype(a.dtype())?);
    }
    in_f32(a, &b.to_dtype(a.dtype())?)?.to_dtype(out)
}

/// `sum + a b`, in place where a kernel can; `sum` must not be shared.
pub(crate) fn add_product(sum: Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if widens(a, sum.dtype()) {
        super::cuda::add_product(&sum, a, &b.to_dtype(a.dtype())?)?;
        return Ok(sum);
    }
    let product = product(a, b, sum.dtype())?;
    super::add_to(sum, &product)
}

/// True if the product of two matrices, the first of which is `a`, has numbers wider than theirs on
/// a GPU.
#[cfg(feature = "cuda")]
fn widens(a: &Tensor, out: DType) -> bool {
    a.device().is_cuda() && a.rank() == 2 && (a.dtype(), out) == (DType::BF16, DType::F32)
}

/// `x` rounded to bf16, as f32 in the same memory order.
fn rounded(x: &Tensor) -> Result<Tensor> {
    if x.rank() >= 2 && !x.is_contiguous() {
        let turned = x.t()?;
        if turned.is_contiguous() {
            return rounded(&turned)?.t();
        }
    }
    to_dtype(&to_dtype(&x.contiguous()?, DType::BF16)?, DType::F32)
}

fn in_tiles(instructions: Instructions, a: &Tensor, b: &Tensor, out: DType) -> Result<Tensor> {
    let (&[ref batch @ .., rows, inner], &[ref same_batch @ .., same, columns]) =
        (a.dims(), b.dims())
    else {
        return layout_error(
            NAME,
            format!("{:?} and {:?} are not two matrices", a.dims(), b.dims()),
        );
    };
    if batch != same_batch || inner != same {
        return layout_error(NAME, format!("{:?} does not fit {:?}", a.dims(), b.dims()));
    }
    if out == DType::BF16 && inner > multiply::CHUNK {
        return to_dtype(&in_tiles(instructions, a, b, DType::F32)?, out);
    }
    let shape = [batch, &[rows, columns]].concat();
    if inner == 0 || shape.contains(&0) {
        return Tensor::zeros(shape, out, a.device());
    }
    let (a_storage, a_layout) = a.storage_and_layout();
    let (b_storage, b_layout) = b.storage_and_layout();
    let lefts = matrices(&a_storage, a_layout)?;
    let rights = matrices(&b_storage, b_layout)?;
    let pairs: Vec<Pair<'_>> = lefts
        .into_iter()
        .zip(rights)
        .map(|(left, right)| Pair {
            left,
            right: right.transposed(),
        })
        .collect();
    let sizes = Sizes {
        rows,
        columns,
        inner,
    };
    if out == DType::BF16 {
        let product = multiply::multiply::<bf16>(instructions, &pairs, sizes);
        Tensor::from_vec(product, shape, a.device())
    } else {
        let product = multiply::multiply::<f32>(instructions, &pairs, sizes);
        Tensor::from_vec(product, shape, a.device())
    }
}

/// The matrices of the last two axes.
fn matrices<'a>(storage: &'a Storage, layout: &Layout) -> Result<Vec<Matrix<'a>>> {
    let Storage::Cpu(storage) = storage else {
        return layout_error(NAME, "tensors must be on the CPU".to_owned());
    };
    let (&[ref batch @ .., _, _], &[ref steps @ .., line, inner]) =
        (layout.dims(), layout.stride())
    else {
        return layout_error(NAME, format!("{:?} is no matrix", layout.dims()));
    };
    let mut starts = vec![layout.start_offset()];
    for (count, step) in batch.iter().zip(steps) {
        starts = starts
            .iter()
            .flat_map(|start| (0..*count).map(move |index| start + index * step))
            .collect();
    }
    let mut matrices = Vec::with_capacity(starts.len());
    for start in starts {
        let values = match storage {
            CpuStorage::F32(values) => Values::F32(&values[start..]),
            CpuStorage::BF16(values) => Values::Bf16(&values[start..]),
            other => return dtype_error(other, NAME),
        };
        matrices.push(Matrix {
            values,
            line,
            inner,
        });
    }
    Ok(matrices)
}
