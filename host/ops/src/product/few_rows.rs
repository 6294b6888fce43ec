//! Products of a few rows with a large matrix in bf16. The weights are read once, in the order of memory.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::super::kernel::layout_error;
use super::super::narrow;
use super::pack::{Panels, Values};
use super::tile::{COLUMNS, ROWS, Tile};
use super::{DEPTH, add, matrix, product};

/// Number of row blocks of the weights that one thread takes at a time.
const TAKEN: usize = 8;

/// `x weight^T` for `x` `[M, K]` and `weight` `[N, K]`, both bf16 on the CPU, as `[M, N]` bf16; bit for bit equal to [`product`].
pub fn product_of_few_rows_in_bf16(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !weight.is_contiguous() || !weight.dim(1)?.is_multiple_of(2) {
        return product(x, &weight.t()?, x.dtype());
    }
    x.apply_op2_no_bwd(weight, &FewRows)
}

struct FewRows;

impl CustomOp2 for FewRows {
    fn name(&self) -> &'static str {
        "few-rows-in-bf16"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, inner), (outputs, width)) = (xl.shape().dims2()?, wl.shape().dims2()?);
        let (x, weight) = (matrix(x, xl, self.name())?, matrix(w, wl, self.name())?);
        let (Values::Bf16(weight), true, true) = (weight.values, inner == width, inner > 0) else {
            return layout_error(self.name(), format!("{:?} does not fit {:?}", xl.dims(), wl.dims()));
        };
        let x = Panels::<COLUMNS>::new(x, rows, inner);
        let (lanes, pairs) = (rows.next_multiple_of(COLUMNS), inner / 2);
        // `[N, M]` with M padded, so that each thread writes a contiguous range.
        let mut turned = vec![0.0_f32; outputs * lanes];
        let tile = Tile::of_this_machine();
        let share = TAKEN * ROWS;
        turned.par_chunks_mut(share * lanes).zip(weight.par_chunks(share * inner)).for_each(|(turned, weight)| {
            let mut block = vec![[0; ROWS]; pairs];
            for (weight, turned) in weight.chunks(ROWS * inner).zip(turned.chunks_mut(ROWS * lanes)) {
                for (row, weight) in weight.chunks_exact(inner).enumerate() {
                    for (to, [first, second]) in block.iter_mut().zip(weight.as_chunks::<2>().0) {
                        to[row] = u32::from(first.to_bits()) | u32::from(second.to_bits()) << 16;
                    }
                }
                for panel in 0..lanes / COLUMNS {
                    for from in (0..pairs).step_by(DEPTH) {
                        let depth = from..(from + DEPTH).min(pairs);
                        let sums = tile.multiply(&block[depth.clone()], x.part(panel, &depth));
                        add(turned, lanes, panel * COLUMNS, &sums);
                    }
                }
            }
        });
        let mut out = vec![0.0_f32; rows * outputs];
        out.par_chunks_mut(outputs).enumerate().for_each(|(row, out)| {
            out.iter_mut().zip(turned[row..].iter().step_by(lanes)).for_each(|(out, value)| *out = *value);
        });
        Ok((CpuStorage::BF16(narrow(&out)), (rows, outputs).into()))
    }
}
