//! Matrix products of numbers rounded to bf16, summed in f32, on the CPU. With the machine's bf16 instruction they are twice as fast as in
//! f32.
//!
//! Both operands are rounded and copied into the order in which the kernel reads them, so they may be f32 or bf16 with any layout. Every
//! result is summed pair by pair along the inner axis, in groups of 256 pairs whose sums are then added. Neither the number of threads nor
//! the instruction set changes a bit, except for numbers below 1.2e-38, which the instruction treats as 0.

mod few_rows;
mod pack;
pub mod tile;

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::kernel::{dtype_error, layout_error};
use super::narrow;
pub use few_rows::product_of_few_rows_in_bf16;
use pack::{Matrix, Panels, Values};
use tile::{COLUMNS, ROWS, Tile};

/// Pairs of the inner axis that are summed in one group; a panel of them fits in the nearest cache.
const DEPTH: usize = 256;
/// Smallest number of row blocks in a thread's share.
const LEAST_BLOCKS: usize = 4;

/// `a b` for `a` `[M, R]` and `b` `[R, N]`, in the dtype `out`. If one of them is bf16 on the CPU, both are rounded to bf16.
pub fn product(a: &Tensor, b: &Tensor, out: DType) -> Result<Tensor> {
    let rounds = [a, b].iter().any(|tensor| tensor.dtype() == DType::BF16) && a.device().is_cpu();
    if rounds && matches!(out, DType::F32 | DType::BF16) {
        return a.apply_op2_no_bwd(b, &Product { out });
    }
    a.matmul(&b.to_dtype(a.dtype())?)?.to_dtype(out)
}

struct Product {
    out: DType,
}

impl CustomOp2 for Product {
    fn name(&self) -> &'static str {
        "bf16-product"
    }

    fn cpu_fwd(&self, a: &CpuStorage, al: &Layout, b: &CpuStorage, bl: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, inner), (same, columns)) = (al.shape().dims2()?, bl.shape().dims2()?);
        if inner != same {
            return layout_error(self.name(), format!("{:?} does not fit {:?}", al.dims(), bl.dims()));
        }
        let (a, b) = (matrix(a, al, self.name())?, matrix(b, bl, self.name())?.transposed());
        let sums = multiply(a, b, (rows, columns, inner));
        let out = if self.out == DType::BF16 { CpuStorage::BF16(narrow(&sums)) } else { CpuStorage::F32(sums) };
        Ok((out, (rows, columns).into()))
    }
}

/// The numbers of a matrix with the strides between its lines and within a line.
fn matrix<'a>(storage: &'a CpuStorage, layout: &Layout, op: &'static str) -> Result<Matrix<'a>> {
    let (start, strides) = (layout.start_offset(), layout.stride());
    let values = match storage {
        CpuStorage::F32(values) => Values::F32(&values[start..]),
        CpuStorage::BF16(values) => Values::Bf16(&values[start..]),
        other => return dtype_error(other, op),
    };
    Ok(Matrix { values, line: strides[0], inner: strides[1] })
}

/// `[M, N]`: inner products of the lines of `a` `[M, R]` with the lines of `b` `[N, R]`.
fn multiply(a: Matrix<'_>, b: Matrix<'_>, (rows, columns, inner): (usize, usize, usize)) -> Vec<f32> {
    let mut out = vec![0.0; rows * columns];
    if out.is_empty() || inner == 0 {
        return out;
    }
    let pairs = inner.div_ceil(2);
    let (a, b) = (Panels::<ROWS>::new(a, rows, inner), Panels::<COLUMNS>::new(b, columns, inner));
    let blocks = rows.div_ceil(ROWS);
    let share = blocks.div_ceil(2 * rayon::current_num_threads()).max(LEAST_BLOCKS);
    let tile = Tile::of_this_machine();
    out.par_chunks_mut(share * ROWS * columns).enumerate().for_each(|(number, out)| {
        for from in (0..pairs).step_by(DEPTH) {
            let depth = from..(from + DEPTH).min(pairs);
            for panel in 0..columns.div_ceil(COLUMNS) {
                let b = b.part(panel, &depth);
                for (block, out) in out.chunks_mut(ROWS * columns).enumerate() {
                    let sums = tile.multiply(a.part(number * share + block, &depth), b);
                    add(out, columns, panel * COLUMNS, &sums);
                }
            }
        }
    });
    out
}

/// Adds a tile to the rows of `out`, each `width` columns wide, from column `first` on.
fn add(out: &mut [f32], width: usize, first: usize, tile: &[[f32; COLUMNS]; ROWS]) {
    let count = COLUMNS.min(width - first);
    for (out, sums) in out.chunks_mut(width).zip(tile) {
        for (out, sum) in out[first..first + count].iter_mut().zip(sums) {
            *out += sum;
        }
    }
}
