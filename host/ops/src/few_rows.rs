//! Products of a few rows with a large matrix, as in generation. The weights are read once, in the
//! order of memory.
//!
//! A matrix library first reorders the weights, which takes longer than the product itself for few
//! rows.

use std::ops::Range;

use candle_core::{DType, Device, Layout, Result, Storage, Tensor, WithDType};
use half::bf16;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::kernel::{for_rows, layout_error, rows, slice};
use super::product::{Instructions, Packed, part_of, products_with_packed};
use super::to_dtype;

const NAME: &str = "few-rows";
/// Largest number of rows for which this is the faster way (`benches/model.rs` prints both).
const MOST: usize = 128;
/// Largest number of row blocks of the weights that one thread takes at a time.
const TAKEN: usize = 12;
/// Smallest number of work items per thread, so that a delayed thread leaves some to others.
const SHARES: usize = 4;

/// A weight `[N, K]` that many products of few rows read. If it is bf16, it keeps the numbers that
/// the weight had when it was made.
pub enum Streamed {
    /// As it is stored.
    Stored(Tensor),
    /// bf16, packed for tiles.
    Packed(Packed),
}

impl Streamed {
    /// The weight in `dtype`; `None` if products do not get faster by it.
    pub fn new(weight: &Tensor, dtype: DType) -> Result<Option<Self>> {
        if !weight.device().is_cpu() || !matches!(dtype, DType::F32 | DType::BF16) {
            return Ok(None);
        }
        Ok(Some(match Instructions::of_this_machine()? {
            Instructions::F32 => Self::Stored(to_dtype(weight, dtype)?),
            _ if dtype == DType::F32 => Self::Stored(to_dtype(weight, dtype)?),
            _ => Self::Packed(Packed::new(weight)?),
        }))
    }

    /// True if products of `rows` rows are faster with it.
    pub fn takes(&self, rows: usize) -> bool {
        match self {
            Self::Stored(_) => (1..=MOST).contains(&rows),
            Self::Packed(_) => rows > 0,
        }
    }
}

/// `x weight^T` for `x` `[M, K]` and each `weight` `[N, K]`, all f32 or all bf16 on the CPU, as
/// `[M, N]` in the dtype `out`, f32 or bf16. The bits are those of `product_of_rows`, but for tiles
/// of bf16 with more than 4,096 numbers in a sum.
///
/// Threads share the rows of all weights, so that small matrices do not wait for each other.
pub fn products_of_few_rows<const COUNT: usize>(
    x: &Tensor,
    weights: [&Streamed; COUNT],
    out: DType,
) -> Result<[Tensor; COUNT]> {
    Ok(products(x, &weights, out)?
        .try_into()
        .expect("as many products as weights"))
}

/// [`products_of_few_rows`] without a generic parameter, so that it is compiled in this crate,
/// whose profile optimises it.
fn products(x: &Tensor, weights: &[&Streamed], out: DType) -> Result<Vec<Tensor>> {
    let packed: Vec<&Packed> = weights
        .iter()
        .filter_map(|weight| {
            if let Streamed::Packed(packed) = weight {
                Some(packed)
            } else {
                None
            }
        })
        .collect();
    if packed.len() == weights.len() {
        let instructions = Instructions::of_this_machine()?;
        let x = to_dtype(x, DType::BF16)?;
        return match out {
            DType::BF16 => products_with_packed::<bf16>(instructions, &x, &packed),
            _ => products_with_packed::<f32>(instructions, &x, &packed),
        };
    }
    let stored: Vec<&Tensor> = weights
        .iter()
        .filter_map(|weight| {
            if let Streamed::Stored(stored) = weight {
                Some(stored)
            } else {
                None
            }
        })
        .collect();
    let wide = to_dtype(&x.contiguous()?, DType::F32)?;
    let products = match stored[0].dtype() {
        DType::BF16 => widened::<bf16>(&wide, &stored)?,
        _ => widened::<f32>(&wide, &stored)?,
    };
    products
        .iter()
        .map(|product| to_dtype(product, out))
        .collect()
}

/// `x weight^T` for contiguous f32 on the CPU.
pub(crate) fn product_with_few_rows(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(widened::<f32>(x, &[weight])?.remove(0))
}

/// A number of a weight.
trait Weight: WithDType {
    /// `row` in f32; `room` is as long.
    fn widen<'a>(row: &'a [Self], room: &'a mut [f32]) -> &'a [f32];
}

impl Weight for f32 {
    #[inline(always)]
    fn widen<'a>(row: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        row
    }
}

impl Weight for bf16 {
    #[inline(always)]
    fn widen<'a>(row: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        for (to, from) in room.iter_mut().zip(row) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
        room
    }
}

/// The products in f32 with weights whose rows are widened when they are read.
fn widened<W: Weight>(x: &Tensor, weights: &[&Tensor]) -> Result<Vec<Tensor>> {
    let (rows, inner) = x.dims2()?;
    for weight in weights {
        if weight.dims2()?.1 != inner || inner == 0 {
            return layout_error(
                NAME,
                format!("{:?} does not fit {:?}", x.dims(), weight.dims()),
            );
        }
    }
    let x = x.storage_and_layout();
    let stored = weights.iter().map(|weight| weight.storage_and_layout());
    let stored: Vec<_> = stored.collect();
    let weights: Vec<&[W]> = stored
        .iter()
        .map(|(storage, layout)| numbers(storage, layout))
        .collect::<Result<_>>()?;
    let products = Arch::new().dispatch(Products {
        x: numbers(&x.0, x.1)?,
        weights: &weights,
        inner,
        rows,
    });
    products
        .into_iter()
        .map(|product| {
            let outputs = product.len() / rows;
            Tensor::from_vec(product, (rows, outputs), &Device::Cpu)
        })
        .collect()
}

fn numbers<'a, T: WithDType>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    match storage {
        Storage::Cpu(storage) => slice(storage, layout, NAME),
        _ => layout_error(NAME, "tensors must be on the CPU".to_owned()),
    }
}

/// The products, with as many accumulators as the machine has registers.
struct Products<'a, W> {
    x: &'a [f32],
    weights: &'a [&'a [W]],
    inner: usize,
    rows: usize,
}

impl<W: Weight> WithSimd for Products<'_, W> {
    type Output = Vec<Vec<f32>>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        // As many sums as registers: with more, the compiler keeps some in memory and takes three
        // times as long.
        match (self.rows <= S::F32_LANES, S::REGISTER_COUNT >= 32) {
            (true, _) => self.run::<S, 8, 1>(simd),
            (false, true) => self.run::<S, 8, 2>(simd),
            (false, false) => self.run::<S, 6, 2>(simd),
        }
    }
}

impl<W: Weight> Products<'_, W> {
    /// Computes with `BLOCK` rows of weights and `VECTORS` vectors of rows at a time.
    #[inline(always)]
    fn run<S: Simd, const BLOCK: usize, const VECTORS: usize>(self, simd: S) -> Vec<Vec<f32>> {
        let Self {
            x,
            weights,
            inner,
            rows,
        } = self;
        let outputs = weights.iter().map(|weight| weight.len()).sum::<usize>() / inner;
        let panels = panels(x, inner, VECTORS * S::F32_LANES);
        let blocks = outputs
            .div_ceil(SHARES * rayon::current_num_threads())
            .div_ceil(BLOCK);
        let share = blocks.min(TAKEN) * BLOCK;
        // Each product is a sequence of parts `[M, share]`, so that each thread writes one
        // contiguous range.
        let mut products: Vec<Vec<f32>> = weights
            .iter()
            .map(|weight| vec![0.0; weight.len() / inner * rows])
            .collect();
        let parts = products
            .iter_mut()
            .zip(weights)
            .flat_map(|(product, weight)| {
                product
                    .chunks_mut(share * rows)
                    .zip(weight.chunks(share * inner))
            });
        parts
            .collect::<Vec<_>>()
            .into_par_iter()
            .for_each(|(part, weight)| {
                simd.vectorize(Chunk::<S, W, BLOCK, VECTORS> {
                    simd,
                    weight,
                    panels: &panels,
                    inner,
                    rows,
                    part,
                });
            });
        products
            .into_iter()
            .map(|parts| in_order(&parts, rows, share))
            .collect()
    }
}

/// The product `[rows, N]`, from its parts `[rows, share]` behind each other.
fn in_order(parts: &[f32], rows: usize, share: usize) -> Vec<f32> {
    rows!(f32; parts.len(), parts.len() / rows, |row, out| {
        for (out, part) in out.chunks_mut(share).zip(parts.chunks(share * rows)) {
            out.copy_from_slice(&part[row * out.len()..][..out.len()]);
        }
    })
}

/// The rows of `x` `[M, K]` as `[M / width, K, width]`, padded with rows of zeros.
fn panels(x: &[f32], inner: usize, width: usize) -> Vec<f32> {
    let mut panels = vec![0.0; (x.len() / inner).next_multiple_of(width) * inner];
    for_rows!(&mut panels, width, |line, out| {
        let panel = line / inner;
        let k = line % inner;
        let column = x[panel * width * inner + k..].iter().step_by(inner);
        out.iter_mut().zip(column).for_each(|(out, x)| *out = *x);
    });
    panels
}

/// Product of some rows of the weights with all rows of `x`.
struct Chunk<'a, S, W, const BLOCK: usize, const VECTORS: usize> {
    simd: S,
    weight: &'a [W],
    panels: &'a [f32],
    inner: usize,
    rows: usize,
    /// `[M, rows of the weights]`: the products.
    part: &'a mut [f32],
}

impl<S: Simd, W: Weight, const BLOCK: usize, const VECTORS: usize> pulp::NullaryFnOnce
    for Chunk<'_, S, W, BLOCK, VECTORS>
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            simd,
            weight,
            panels,
            inner,
            rows,
            part,
        } = self;
        let (panels, _) = S::as_simd_f32s(panels);
        let lanes = VECTORS * S::F32_LANES;
        let outputs = weight.len() / inner;
        let row_of = |output: usize| &weight[output * inner..][..inner];
        // A block's rows are far apart in memory, because the processor prefetches one row per
        // page, not two.
        let apart = outputs / BLOCK;
        let mut room = vec![
            0.0;
            if W::DTYPE == DType::F32 {
                0
            } else {
                BLOCK * inner
            }
        ];
        for (panel, row) in panels
            .chunks_exact(inner * VECTORS)
            .zip((0..rows).step_by(lanes))
        {
            let part = &mut part[row * outputs..(row + lanes).min(rows) * outputs];
            for first in 0..apart {
                let mut weights = [&[][..]; BLOCK];
                let mut rooms = room.chunks_mut(inner);
                for (row, weights) in weights.iter_mut().enumerate() {
                    *weights = W::widen(
                        row_of(first + row * apart),
                        rooms.next().unwrap_or_default(),
                    );
                }
                write::<S, BLOCK, VECTORS>(
                    &block(simd, &weights, panel),
                    part,
                    outputs,
                    first,
                    apart,
                );
            }
            for output in apart * BLOCK..outputs {
                let weights = [W::widen(
                    row_of(output),
                    room.get_mut(..inner).unwrap_or_default(),
                )];
                write::<S, 1, VECTORS>(&block(simd, &weights, panel), part, outputs, output, 1);
            }
        }
    }
}

/// Writes sums of `BLOCK` outputs to the rows of `part`; the outputs are `first` and those at
/// multiples of `apart` after it.
#[inline(always)]
fn write<S: Simd, const BLOCK: usize, const VECTORS: usize>(
    sums: &[[S::f32s; VECTORS]; BLOCK],
    part: &mut [f32],
    outputs: usize,
    first: usize,
    apart: usize,
) {
    for (output, sums) in sums.iter().enumerate() {
        let sums: &[f32] = bytemuck::cast_slice(sums);
        for (part, sum) in part.chunks_exact_mut(outputs).zip(sums) {
            part[first + output * apart] = *sum;
        }
    }
}

/// Sums of `BLOCK` rows of weights `[K]` with one panel `[K, VECTORS]`, part by part.
#[inline(always)]
fn block<S: Simd, const BLOCK: usize, const VECTORS: usize>(
    simd: S,
    rows: &[&[f32]; BLOCK],
    panel: &[S::f32s],
) -> [[S::f32s; VECTORS]; BLOCK] {
    let inner = panel.len() / VECTORS;
    let part = part_of(inner);
    let mut sums = part_of_block(simd, rows, panel, 0..part.min(inner));
    for from in (part..inner).step_by(part) {
        let more =
            part_of_block::<S, BLOCK, VECTORS>(simd, rows, panel, from..(from + part).min(inner));
        for (sum, more) in sums.iter_mut().flatten().zip(more.iter().flatten()) {
            *sum = simd.add_f32s(*sum, *more);
        }
    }
    sums
}

/// The sums over the numbers `range` of K.
#[inline(always)]
fn part_of_block<S: Simd, const BLOCK: usize, const VECTORS: usize>(
    simd: S,
    rows: &[&[f32]; BLOCK],
    panel: &[S::f32s],
    range: Range<usize>,
) -> [[S::f32s; VECTORS]; BLOCK] {
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; BLOCK];
    let panel = &panel[range.start * VECTORS..range.end * VECTORS];
    let rows = rows.map(|row| &row[range.clone()]);
    for (k, x) in panel.chunks_exact(VECTORS).enumerate() {
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let weight = simd.splat_f32s(row[k]);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = simd.mul_add_f32s(weight, *x, *sum);
            }
        }
    }
    sums
}
