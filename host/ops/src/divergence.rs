//! KL divergence of a distribution under a change of its logits, accurate for changes of any size.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::kernel::{dot, for_rows, layout_error, maximum, slice, sum};
use super::number::Real;
use super::{chunk_rows, fused, generic, matmul};

/// Number of logits that are processed at a time.
const BLOCK: usize = 256;
/// Below this value, `f32` exponentials are off by more than a few units in the last place.
const DEEP: f32 = -80.0;
/// Largest change for which the series is used.
const SMALL: f64 = 0.25;
/// Smallest change whose exponential overflows.
const HUGE: f64 = 600.0;

/// `KL(softmax(logits / temperature) || softmax((logits + change) / temperature))` of every row of
/// two f32 tensors `[N, V]`, in nats, as `[N]` f64. NaN for a row with a non-finite number.
///
/// Let `p` be the first distribution and `x` the scaled change minus its mean under `p`. The result
/// is `ln(1 + Σ p (e^x - 1 - x))`. No term is negative, so nothing cancels, and a change of 1e-6 is
/// measured as precisely as a change of 10.
pub fn divergence(logits: &Tensor, change: &Tensor, temperature: f64) -> Result<Tensor> {
    if !fused(logits) {
        return generic::divergence(logits, change, temperature);
    }
    logits
        .contiguous()?
        .apply_op2_no_bwd(&change.contiguous()?, &Divergence { temperature })
}

/// Sum of [`divergence`] over the rows of the logits `hidden` `head`ᵀ, under their change by
/// `moved` `by`ᵀ. Logits of few rows are in memory at a time.
pub fn divergence_of_products(
    [hidden, head]: [&Tensor; 2],
    [moved, by]: [&Tensor; 2],
    temperature: f64,
) -> Result<f64> {
    let count = hidden.dim(0)?;
    let chunk = (chunk_rows(head.dim(0)?, head.device()) / 2).max(1);
    let mut rows = Vec::new();
    for from in (0..count).step_by(chunk) {
        let len = chunk.min(count - from);
        let logits = matmul(&hidden.narrow(0, from, len)?, &head.t()?)?;
        let change = matmul(&moved.narrow(0, from, len)?, &by.t()?)?;
        rows.push(divergence(&logits, &change, temperature)?);
    }
    if rows.is_empty() {
        return Ok(0.0);
    }
    let rows = Tensor::cat(&rows, 0)?;
    if !rows.device().is_cpu() {
        return rows.sum_all()?.to_scalar();
    }
    Ok(rows.to_vec1::<f64>()?.iter().sum())
}

struct Divergence {
    temperature: f64,
}

impl Divergence {
    fn row(&self, logits: &[f32], change: &[f32]) -> f64 {
        let largest = maximum(logits);
        let inverse = 1.0 / self.temperature;
        // Unnormalised probability of each token.
        let mut weights = vec![0.0_f64; logits.len()];
        let mut total = 0.0;
        let mut mean = 0.0;
        for (at, weights) in weights.chunks_mut(BLOCK).enumerate() {
            let block = at * BLOCK..at * BLOCK + weights.len();
            exponentials(&logits[block.clone()], largest, inverse, weights);
            total += sum(weights);
            mean += dot(weights, &wide(&change[block])[..weights.len()]);
        }
        mean /= total;
        let mut moved = 0.0;
        for (at, weights) in weights.chunks(BLOCK).enumerate() {
            let mut x = wide(&change[at * BLOCK..][..weights.len()]);
            let x = &mut x[..weights.len()];
            x.iter_mut().for_each(|x| *x = (*x - mean) * inverse);
            let size = x.iter().fold(
                0.0,
                |size: f64, x| if x.abs() <= size { size } else { x.abs() },
            );
            if size <= SMALL {
                x.iter_mut().for_each(|x| *x = series(*x));
            } else if size < HUGE {
                x.iter_mut().for_each(|x| *x = beyond_first_order(*x));
            } else {
                return self.row_of_huge_change(logits, change, mean);
            }
            moved += dot(weights, x);
        }
        (moved / total).ln_1p()
    }

    /// Divergence of a row whose changes overflow: `ln Σ e^(z + x) - ln Σ e^z`. Cancellation is
    /// harmless at this size.
    fn row_of_huge_change(&self, logits: &[f32], change: &[f32], mean: f64) -> f64 {
        let before = logits
            .iter()
            .map(|logit| f64::from(*logit) / self.temperature);
        let after = logits
            .iter()
            .zip(change)
            .map(|(z, d)| (f64::from(*z) + f64::from(*d) - mean) / self.temperature);
        logsumexp(after) - logsumexp(before)
    }
}

/// `e^((logit - largest) * inverse)`.
fn exponentials(logits: &[f32], largest: f32, inverse: f64, out: &mut [f64]) {
    let narrow = inverse as f32;
    if logits
        .iter()
        .all(|logit| (*logit - largest) * narrow > DEEP)
    {
        let mut exps = [0.0_f32; BLOCK];
        let exps = &mut exps[..logits.len()];
        exps.iter_mut()
            .zip(logits)
            .for_each(|(exp, logit)| *exp = Real::exp((*logit - largest) * narrow));
        out.iter_mut()
            .zip(exps)
            .for_each(|(out, exp)| *out = f64::from(*exp));
    } else {
        for (out, logit) in out.iter_mut().zip(logits) {
            *out = (f64::from(*logit - largest) * inverse).exp();
        }
    }
}

fn wide(values: &[f32]) -> [f64; BLOCK] {
    let mut out = [0.0; BLOCK];
    out.iter_mut()
        .zip(values)
        .for_each(|(out, value)| *out = f64::from(*value));
    out
}

/// `e^x - 1 - x` for `|x| <= SMALL`, to f64's precision.
#[inline(always)]
fn series(x: f64) -> f64 {
    const INVERSE_FACTORIALS: [f64; 10] = [
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        1.0 / 2.0,
    ];
    x * x
        * INVERSE_FACTORIALS
            .iter()
            .fold(0.0, |sum, factor| sum * x + factor)
}

/// `e^x - 1 - x`.
fn beyond_first_order(x: f64) -> f64 {
    if x.abs() <= SMALL {
        series(x)
    } else {
        x.exp_m1() - x
    }
}

fn logsumexp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    largest
        + values
            .map(|value| (value - largest).exp())
            .sum::<f64>()
            .ln()
}

impl CustomOp2 for Divergence {
    fn name(&self) -> &'static str {
        "divergence"
    }

    fn cpu_fwd(
        &self,
        z: &CpuStorage,
        zl: &Layout,
        d: &CpuStorage,
        dl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, vocab) = zl.shape().dims2()?;
        if zl.shape() != dl.shape() || vocab == 0 {
            return layout_error(
                self.name(),
                format!("logits {:?} and changes {:?} differ", zl.dims(), dl.dims()),
            );
        }
        let logits = slice::<f32>(z, zl, self.name())?;
        let change = slice::<f32>(d, dl, self.name())?;
        let mut out = vec![0.0_f64; rows];
        for_rows!(&mut out, 1, 4 * vocab, |row, out| {
            let row = row * vocab..(row + 1) * vocab;
            out[0] = self.row(&logits[row.clone()], &change[row]);
        });
        Ok((CpuStorage::F64(out), rows.into()))
    }
}
