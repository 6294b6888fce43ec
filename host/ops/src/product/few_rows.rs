//! Products with weights that are packed once for many products, in tiles: each is read once, in
//! the order of memory.

use candle_core::{Device, Result, Tensor, WithDType};
use rayon::prelude::*;

use super::instructions::Instructions;
use super::matrices;
use super::multiply::{Number, Store, strips};
use super::operand::{Factors, LINES, STEP, Sums};
use super::pack::{Panel, Side, empty, fill, panels};
use super::tile;
use crate::kernel::layout_error;

/// Number of panels of the weights that one thread takes at a time.
const TAKEN: usize = 4;

/// A weight `[N, K]`, rounded to bf16, in the order in which tiles read it.
pub struct Packed {
    panels: Vec<Panel>,
    outputs: usize,
    inner: usize,
}

impl Packed {
    /// The numbers that `weight`, f32 or bf16 on the CPU, has now.
    pub fn new(weight: &Tensor) -> Result<Self> {
        let (outputs, inner) = weight.dims2()?;
        let (storage, layout) = weight.storage_and_layout();
        let matrix = matrices(&storage, layout)?[0];
        // One thread allocates all, so that the memory serves other things as soon as it is free.
        let mut panels = empty(outputs, inner);
        panels
            .par_iter_mut()
            .enumerate()
            .for_each(|(number, panel)| {
                let lines = number * LINES..((number + 1) * LINES).min(outputs);
                fill(
                    std::slice::from_mut(panel),
                    matrix,
                    Side::Right,
                    lines,
                    &(0..inner),
                );
            });
        Ok(Self {
            panels,
            outputs,
            inner,
        })
    }
}

/// `x weight^T` for `x` `[M, K]`, bf16 on the CPU, and each `weight` `[N, K]`, as `[M, N]` of the
/// type `N`.
///
/// Threads share the panels of all weights, so that small matrices do not wait for each other.
pub(crate) fn products_with_packed<N: Number + WithDType>(
    instructions: Instructions,
    x: &Tensor,
    weights: &[&Packed],
) -> Result<Vec<Tensor>> {
    let (rows, inner) = x.dims2()?;
    if let Some(weight) = weights
        .iter()
        .find(|weight| weight.inner != inner || rows * inner == 0)
    {
        return layout_error(
            "product",
            format!(
                "{:?} does not fit {:?}",
                x.dims(),
                (weight.outputs, weight.inner)
            ),
        );
    }
    let (storage, layout) = x.storage_and_layout();
    let left = panels(
        matrices(&storage, layout)?[0],
        Side::Left,
        0..rows,
        &(0..inner),
    );
    let mut products: Vec<Vec<N>> = weights
        .iter()
        .map(|weight| Vec::with_capacity(rows * weight.outputs))
        .collect();
    let mut work = Vec::new();
    for (product, weight) in products.iter_mut().zip(weights) {
        let room = &mut product.spare_capacity_mut()[..rows * weight.outputs];
        work.extend(
            strips(room, weight.outputs, false, TAKEN * LINES)
                .into_iter()
                .zip(weight.panels.chunks(TAKEN)),
        );
    }
    let steps = inner.div_ceil(STEP);
    work.into_par_iter().for_each(|(mut out, panels)| {
        tile::configured(instructions, || {
            let mut sums = Sums::ZERO;
            for (number, right) in panels.iter().enumerate() {
                for (left, out) in left.iter().zip(out.chunks_mut(LINES)) {
                    let factors = Factors {
                        left: left.operand(0),
                        right: right.operand(0),
                        steps,
                        lines: out.len(),
                    };
                    tile::multiply(instructions, factors, &mut sums, true);
                    let store = Store {
                        sums: &sums,
                        out,
                        column: number * LINES,
                        adds: false,
                    };
                    pulp::Arch::new().dispatch(store);
                }
            }
        });
    });
    products
        .into_iter()
        .zip(weights)
        .map(|(mut product, weight)| {
            // SAFETY: the strips are all of the product, and each was written.
            unsafe { product.set_len(rows * weight.outputs) };
            Tensor::from_vec(product, (rows, weight.outputs), &Device::Cpu)
        })
        .collect()
}
