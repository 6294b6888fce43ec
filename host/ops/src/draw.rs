//! Drawing of one id per row from all logits, on their device.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::kernel::{layout_error, slice};

/// Result in place of an id: the row's largest logit is not finite.
pub const NOT_FINITE: u32 = u32::MAX;

/// One id per row of `logits` `[N, V]` f32 from `softmax(logits / temperature)`. It inverts the cumulative distribution at
/// `uniform` `[N]` f64 in [0, 1). `NOT_FINITE` for a row whose largest logit is not finite. The temperature must be above 0.
pub fn draw(logits: &Tensor, uniform: &Tensor, temperature: f64) -> Result<Tensor> {
    logits.contiguous()?.apply_op2_no_bwd(uniform, &Draw { temperature })
}

/// Index of the largest logit, the lowest among equals; NaN counts as largest.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return id as u32;
        }
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// Inverts the cumulative distribution of `weights` at `uniform` in [0, 1); never returns an index of weight 0.
pub fn pick(weights: &[f64], uniform: f64) -> usize {
    let target = uniform * weights.iter().sum::<f64>();
    let (mut sum, mut last) = (0.0, 0);
    for (index, weight) in weights.iter().enumerate() {
        sum += weight;
        if *weight > 0.0 {
            last = index;
            if sum > target {
                return index;
            }
        }
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

    fn cpu_fwd(&self, logits: &CpuStorage, ll: &Layout, u: &CpuStorage, ul: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, vocab) = ll.shape().dims2()?;
        let (logits, uniform) = (slice::<f32>(logits, ll, self.name())?, slice::<f64>(u, ul, self.name())?);
        if uniform.len() != rows || vocab == 0 {
            return layout_error(self.name(), format!("{} uniform numbers for logits {:?}", uniform.len(), ll.dims()));
        }
        let mut weights = Vec::with_capacity(vocab);
        let mut draw = |(row, uniform): (&[f32], &f64)| {
            let largest = f64::from(row[argmax(row) as usize]);
            if !largest.is_finite() {
                return NOT_FINITE;
            }
            weights.clear();
            weights.extend(row.iter().map(|logit| ((f64::from(*logit) - largest) / self.temperature).exp()));
            pick(&weights, *uniform) as u32
        };
        let ids = logits.chunks_exact(vocab).zip(uniform).map(&mut draw).collect();
        Ok((CpuStorage::U32(ids), rows.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, al: &Layout, b: &CudaStorage, bl: &Layout) -> Result<(CudaStorage, Shape)> {
        super::cuda::draw((a, al), (b, bl), self.temperature)
    }
}
