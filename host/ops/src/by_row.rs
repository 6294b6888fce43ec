//! Products in which the bits of a row do not depend on the rows beside it. A token's row must have
//! the same bits whether it runs through the model alone or with others.
//!
//! On the CPU every sum of f32 runs in the order of the inner axis, in parts whose length depends
//! on that axis alone. The matrix library adds in this order if both matrices are large. Otherwise
//! the kernel for few rows takes its place. In tiles of bf16 the number of rows never matters. On a
//! GPU the library chooses the order.

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};

use super::few_rows::product_with_few_rows;
use super::product::{in_f32, in_parts, product_by};

/// Number of results up to which the matrix library splits sums over lanes, if it finds the numbers
/// of both inner axes side by side.
const IN_LANES: usize = 256;
/// Length of the inner axis up to which the matrix library rounds products before it adds them.
const ROUNDED: usize = 2;

/// [`product`](super::product) of the rows of `a` `[M, R]` with `b` `[R, N]`: each row of the
/// result has the bits that it has in a product with fewer, more or other rows. A GPU's library
/// promises that for equally many rows.
pub fn product_of_rows(a: &Tensor, b: &Tensor, out: DType) -> Result<Tensor> {
    product_by(in_order, a, b, out)
}

fn in_order(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (&[rows, inner], &[same, columns]) = (a.dims(), b.dims()) else {
        return in_f32(a, b);
    };
    if !is_f32(a) || !is_f32(b) || inner != same || inner == 0 || rows * columns == 0 {
        return in_f32(a, b);
    }
    let of_rows = is_along(b.layout(), 0);
    let splits_sums = rows * columns <= IN_LANES && is_along(a.layout(), 1) && of_rows;
    if splits_sums || inner <= ROUNDED || columns == 1 || (rows == 1 && of_rows) {
        return product_with_few_rows(&a.contiguous()?, &b.t()?.contiguous()?);
    }
    if rows == 1 {
        // The library treats a single row in another way than several.
        return in_parts(&Tensor::cat(&[a, a], 0)?, b)?
            .narrow(0, 0, 1)?
            .contiguous();
    }
    in_parts(a, b)
}

fn is_f32(x: &Tensor) -> bool {
    let (storage, _) = x.storage_and_layout();
    matches!(&*storage, Storage::Cpu(CpuStorage::F32(_)))
}

/// True if the numbers along `axis` lie side by side.
fn is_along(layout: &Layout, axis: usize) -> bool {
    layout.stride()[axis] == 1
}
