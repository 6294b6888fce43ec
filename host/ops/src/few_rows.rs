//! Products of a few rows with a large matrix, as generation has them: the weights are read once, in the order in which they are stored.
//!
//! The matrix library puts the weights into an order of its own first, which takes longer than the product itself where the rows are few.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::kernel::{layout_error, slice};
use super::product_of_few_rows_in_bf16;

/// Fewest and most rows for which this is the faster way (`benches/model.rs` prints both).
const FEWEST: usize = 2;
const MOST: usize = 128;
/// Vectors of rows that are worked on together.
const VECTORS: usize = 2;
/// Weights' rows that one thread takes at a time.
const TAKEN: usize = 96;

/// True if [`product_of_few_rows`] takes `rows` rows like `x`.
pub fn are_few_rows(x: &Tensor, rows: usize) -> bool {
    x.device().is_cpu() && matches!(x.dtype(), DType::F32 | DType::BF16) && (FEWEST..=MOST).contains(&rows)
}

/// `x weight^T` for `x` `[M, K]` and `weight` `[N, K]`, both f32 or both bf16 on the CPU, as `[M, N]`: every number is summed in the order of K.
pub fn product_of_few_rows(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::BF16 {
        return product_of_few_rows_in_bf16(x, weight);
    }
    x.contiguous()?.apply_op2_no_bwd(weight, &FewRows)
}

struct FewRows;

impl CustomOp2 for FewRows {
    fn name(&self) -> &'static str {
        "few-rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, inner), (outputs, width)) = (xl.shape().dims2()?, wl.shape().dims2()?);
        if inner != width || inner == 0 {
            return layout_error(self.name(), format!("{:?} does not fit {:?}", xl.dims(), wl.dims()));
        }
        let (x, weight) = (slice::<f32>(x, xl, self.name())?, slice::<f32>(w, wl, self.name())?);
        let mut out = vec![0.0; rows * outputs];
        Arch::new().dispatch(Product { x, weight, inner, rows, out: &mut out });
        Ok((CpuStorage::F32(out), (rows, outputs).into()))
    }
}

/// The product, with as many accumulators as the machine has registers for.
struct Product<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    inner: usize,
    rows: usize,
    out: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if S::REGISTER_COUNT >= 32 { self.run::<S, 12>(simd) } else { self.run::<S, 6>(simd) }
    }
}

impl Product<'_> {
    #[inline(always)]
    fn run<S: Simd, const BLOCK: usize>(self, simd: S) {
        let Self { x, weight, inner, rows, out } = self;
        let outputs = weight.len() / inner;
        let panel = VECTORS * S::F32_LANES;
        let panels = panels(x, inner, panel);
        let lanes = panels.len() / inner;
        // `[N, M]`, M padded: what one thread writes lies together.
        let mut turned = vec![0.0f32; outputs * lanes];
        turned.par_chunks_mut(TAKEN * lanes).zip(weight.par_chunks(TAKEN * inner)).for_each(|(turned, weight)| {
            simd.vectorize(Chunk::<S, BLOCK> { simd, weight, panels: &panels, inner, lanes, turned });
        });
        out.par_chunks_mut(outputs).enumerate().take(rows).for_each(|(row, out)| {
            out.iter_mut().zip(turned[row..].iter().step_by(lanes)).for_each(|(out, value)| *out = *value);
        });
    }
}

/// The rows of `x` `[M, K]` as `[M / width, K, width]`, with rows of zeros at the end.
fn panels(x: &[f32], inner: usize, width: usize) -> Vec<f32> {
    let mut panels = vec![0.0; (x.len() / inner).next_multiple_of(width) * inner];
    for (row, values) in x.chunks_exact(inner).enumerate() {
        let panel = &mut panels[row / width * inner * width..][..inner * width];
        for (at, value) in panel[row % width..].iter_mut().step_by(width).zip(values) {
            *at = *value;
        }
    }
    panels
}

/// Some rows of the weights with all rows of `x`.
struct Chunk<'a, S, const BLOCK: usize> {
    simd: S,
    weight: &'a [f32],
    panels: &'a [f32],
    inner: usize,
    lanes: usize,
    turned: &'a mut [f32],
}

impl<S: Simd, const BLOCK: usize> pulp::NullaryFnOnce for Chunk<'_, S, BLOCK> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, weight, panels, inner, lanes, turned } = self;
        let (panels, _) = S::as_simd_f32s(panels);
        for (weight, turned) in weight.chunks(BLOCK * inner).zip(turned.chunks_mut(BLOCK * lanes)) {
            for (number, panel) in panels.chunks_exact(inner * VECTORS).enumerate() {
                let at = number * VECTORS * S::F32_LANES;
                let turned = turned.chunks_mut(lanes).map(|row| &mut row[at..][..VECTORS * S::F32_LANES]);
                if weight.len() == BLOCK * inner {
                    let rows = std::array::from_fn::<_, BLOCK, _>(|row| &weight[row * inner..][..inner]);
                    write(simd, block(simd, &rows, panel), turned);
                } else {
                    for (weight, turned) in weight.chunks_exact(inner).zip(turned) {
                        write(simd, block(simd, &[weight], panel), std::iter::once(turned));
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn write<'a, S: Simd, const BLOCK: usize>(
    _simd: S,
    sums: [[S::f32s; VECTORS]; BLOCK],
    turned: impl Iterator<Item = &'a mut [f32]>,
) {
    for (sums, turned) in sums.iter().zip(turned) {
        S::as_mut_simd_f32s(turned).0.copy_from_slice(sums);
    }
}

/// `BLOCK` rows of weights `[K]` with one panel `[K, VECTORS]`.
#[inline(always)]
fn block<S: Simd, const BLOCK: usize>(
    simd: S,
    rows: &[&[f32]; BLOCK],
    panel: &[S::f32s],
) -> [[S::f32s; VECTORS]; BLOCK] {
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; BLOCK];
    for (k, x) in panel.chunks_exact(VECTORS).enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let weight = simd.splat_f32s(row[k]);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = simd.mul_add_f32s(weight, *x, *sum);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_product_is_that_of_the_matrix_library() {
        for (rows, inner, outputs) in [(2, 7, 5), (31, 64, 97), (33, 130, 300), (128, 65, 12), (5, 1, 1)] {
            let of = |count: usize, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
            let x = Tensor::from_vec(of(rows * inner, 0.7), (rows, inner), &Device::Cpu).unwrap();
            let weight = Tensor::from_vec(of(outputs * inner, 0.3), (outputs, inner), &Device::Cpu).unwrap();
            let expected = x.matmul(&weight.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
            let found = product_of_few_rows(&x, &weight).unwrap().to_vec2::<f32>().unwrap();
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert!((found - expected).abs() <= 1e-5 * (inner as f32).sqrt(), "{rows} x {inner} x {outputs}");
            }
        }
    }
}
