//! Products of a few rows with a large matrix in bf16, in tiles. The weights are read once, in the order of memory.

use candle_core::{CpuStorage, Device, Layout, Result, Storage, Tensor};
use half::bf16;
use rayon::prelude::*;

use super::instructions::Instructions;
use super::pack::{Matrix, Pairing, Side, Values, panels};
use super::tile::{self, LINES, Operand, STEP, Strides, Sums, TILE};
use crate::kernel::layout_error;

/// Number of panels of the weights that one thread takes at a time.
const TAKEN: usize = 4;

/// `x weight^T` for `x` `[M, K]` and `weight` `[N, K]`, both bf16 on the CPU, as `[M, N]` bf16. `None` if the tiles cannot read the weight
/// where it is.
pub fn product_of_few_rows_in_bf16(instructions: Instructions, x: &Tensor, weight: &Tensor) -> Result<Option<Tensor>> {
    let ((rows, inner), (outputs, width)) = (x.dims2()?, weight.dims2()?);
    if inner != width {
        return layout_error("product", format!("{:?} does not fit {:?}", x.dims(), weight.dims()));
    }
    let x = x.contiguous()?;
    let (x_storage, x_layout) = x.storage_and_layout();
    let (storage, layout) = weight.storage_and_layout();
    let (Some(x), Some(weight)) = (numbers(&x_storage, x_layout), numbers(&storage, layout)) else { return Ok(None) };
    let Ok(words) = bytemuck::try_cast_slice::<_, u32>(weight) else { return Ok(None) };
    if rows == 0 || inner == 0 || !inner.is_multiple_of(STEP) || !outputs.is_multiple_of(LINES) {
        return Ok(None);
    }
    let matrix = Matrix { values: Values::Bf16(x), line: inner, inner: 1 };
    let panels = panels::<1>(matrix, Side::Right, Pairing::Next, 0..rows, &(0..inner));
    let strides = Strides { line: inner / 2, tile: TILE * inner / 2, step: STEP / 2 };
    // `[N, M]`, so that each thread writes a contiguous range.
    let mut turned = vec![bf16::ZERO; outputs * rows];
    let share = TAKEN * LINES;
    turned.par_chunks_mut(share * rows).zip(words.par_chunks(share * inner / 2)).for_each(|(turned, words)| {
        tile::configured(instructions, || {
            let mut sums = Sums::ZERO;
            for (words, turned) in words.chunks(LINES * inner / 2).zip(turned.chunks_mut(LINES * rows)) {
                for (panel, first) in panels.iter().zip((0..rows).step_by(LINES)) {
                    let right = Operand { words: bytemuck::cast_slice(&panel.rows), strides: Strides::packed(1) };
                    let left = Operand { words, strides };
                    tile::multiply(instructions, inner / STEP, left, right, (&mut sums, true));
                    for (turned, sums) in turned.chunks_mut(rows).zip(&sums.0) {
                        turned[first..].iter_mut().zip(sums).for_each(|(out, sum)| *out = bf16::from_f32(*sum));
                    }
                }
            }
        });
    });
    let mut out = vec![bf16::ZERO; rows * outputs];
    out.par_chunks_mut(outputs).enumerate().for_each(|(row, out)| {
        out.iter_mut().zip(turned[row..].iter().step_by(rows)).for_each(|(out, value)| *out = *value);
    });
    Tensor::from_vec(out, (rows, outputs), &Device::Cpu).map(Some)
}

fn numbers<'a>(storage: &'a Storage, layout: &Layout) -> Option<&'a [bf16]> {
    match (storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::BF16(values)), Some((from, to))) => Some(&values[from..to]),
        _ => None,
    }
}
