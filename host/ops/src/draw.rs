//! Drawing of one id per row from all logits, on their device.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use pulp::{Arch, NullaryFnOnce};

use super::kernel::{layout_error, slice, sum};
use super::number::exp_f64;

/// Number of weights whose sum is computed before the search looks at each.
const BLOCK: usize = 256;

/// Result in place of an id: the row's largest logit is not finite.
pub const NOT_FINITE: u32 = u32::MAX;

/// One id per row of `logits` `[N, V]` f32 from `softmax(logits / temperature)`. It inverts the
/// cumulative distribution at `uniform` `[N]` f64 in [0, 1). `NOT_FINITE` for a row whose largest
/// logit is not finite. The temperature must be above 0.
pub fn draw(logits: &Tensor, uniform: &Tensor, temperature: f64) -> Result<Tensor> {
    logits
        .contiguous()?
        .apply_op2_no_bwd(uniform, &Draw { temperature })
}

/// Index of the largest logit, the lowest among equals; NaN counts as largest.
pub fn argmax(logits: &[f32]) -> u32 {
    Arch::new().dispatch(Largest(logits))
}

struct Largest<'a>(&'a [f32]);

impl NullaryFnOnce for Largest<'_> {
    type Output = u32;

    #[inline(always)]
    fn call(self) -> u32 {
        let any_nan = self.0.iter().fold(false, |any, logit| any | logit.is_nan());
        let largest = if any_nan {
            f32::NAN
        } else {
            self.0.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        };
        let found = self.0.iter().position(|logit| {
            if any_nan {
                logit.is_nan()
            } else {
                *logit == largest
            }
        });
        found.unwrap_or(0) as u32
    }
}

/// `exp((logit - largest) / temperature)` of each of `logits`, in place of what `weights` held.
pub fn weigh(logits: &[f32], largest: f64, temperature: f64, weights: &mut Vec<f64>) {
    weights.clear();
    weights.resize(logits.len(), 0.0);
    Arch::new().dispatch(Weigh {
        logits,
        largest,
        temperature,
        weights,
    });
}

struct Weigh<'a> {
    logits: &'a [f32],
    largest: f64,
    temperature: f64,
    weights: &'a mut [f64],
}

impl NullaryFnOnce for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (weight, logit) in self.weights.iter_mut().zip(self.logits) {
            *weight = exp_f64((f64::from(*logit) - self.largest) / self.temperature);
        }
    }
}

/// Inverts the cumulative distribution of `weights` at `uniform` in [0, 1); never returns an index
/// of weight 0.
pub fn pick(weights: &[f64], uniform: f64) -> usize {
    let sums: Vec<f64> = weights.chunks(BLOCK).map(sum).collect();
    let target = uniform * sums.iter().sum::<f64>();
    let mut before = 0.0;
    let mut last = 0;
    for (block, of_block) in sums.iter().enumerate() {
        // The sum over a block in order may differ from the block's by rounding.
        if *of_block > 0.0 && (before + of_block) * (1.0 + 1e-12) > target {
            let mut sum = before;
            for (index, weight) in weights.iter().enumerate().skip(block * BLOCK).take(BLOCK) {
                sum += weight;
                if *weight > 0.0 {
                    last = index;
                    if sum > target {
                        return index;
                    }
                }
            }
        }
        before += of_block;
    }
    last
}

struct Draw {
    temperature: f64,
}

impl CustomOp2 for Draw {
    fn name(&self) -> &'static str {
        "draw"
    }

    fn cpu_fwd(
        &self,
        logits: &CpuStorage,
        ll: &Layout,
        u: &CpuStorage,
        ul: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, vocab) = ll.shape().dims2()?;
        let logits = slice::<f32>(logits, ll, self.name())?;
        let uniform = slice::<f64>(u, ul, self.name())?;
        if uniform.len() != rows || vocab == 0 {
            return layout_error(
                self.name(),
                format!(
                    "{} uniform numbers for logits {:?}",
                    uniform.len(),
                    ll.dims()
                ),
            );
        }
        let mut weights = Vec::with_capacity(vocab);
        let mut ids = Vec::with_capacity(rows);
        for (row, uniform) in logits.chunks_exact(vocab).zip(uniform) {
            let largest = f64::from(row[argmax(row) as usize]);
            if largest.is_finite() {
                weigh(row, largest, self.temperature, &mut weights);
                ids.push(pick(&weights, *uniform) as u32);
            } else {
                ids.push(NOT_FINITE);
            }
        }
        Ok((CpuStorage::U32(ids), rows.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        logits: &CudaStorage,
        of_logits: &Layout,
        uniform: &CudaStorage,
        of_uniform: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        use super::cuda::{Arg, draw};

        let logits = Arg::new(logits, of_logits);
        draw(logits, Arg::new(uniform, of_uniform), self.temperature)
    }
}
