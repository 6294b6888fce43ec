//! Truncation of a distribution to its most likely tokens.

use candle_core::{Device, Result, Tensor};

use super::{generic, top_ids};

/// Logit of a token that cannot be drawn: its probability is 0, and products with 0 stay finite.
const OUT: f32 = -1e30;

/// The tokens that can be drawn: temperature is applied first, then top-k, then top-p.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Truncation {
    /// Divisor of the logits, applied before `top_p`.
    pub temperature: f64,
    /// Number of largest logits kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass: the fewest most likely tokens that reach it are kept; 1 keeps all.
    pub top_p: f64,
}

/// `logits` `[N, V]` f32 with the logits of all excluded tokens set to a large negative value. Each
/// row's target `[N]` (u32) is never excluded.
///
/// These logits decide which tokens are excluded. A target may be outside them if it was drawn by
/// an older policy, or in another precision.
pub fn truncate(logits: &Tensor, targets: &Tensor, truncation: Truncation) -> Result<Tensor> {
    let Truncation { top_k, top_p, .. } = truncation;
    let vocab = logits.dim(1)?;
    let k = if top_k == 0 { vocab } else { top_k.min(vocab) };
    if k == vocab && top_p == 1.0 {
        return Ok(logits.clone());
    }
    generic::few_rows(logits, |from, few| {
        truncate_few(
            &logits.narrow(0, from, few)?,
            &targets.narrow(0, from, few)?,
            k,
            truncation,
        )
    })
}

/// The same, for the `k` largest logits.
fn truncate_few(
    logits: &Tensor,
    targets: &Tensor,
    k: usize,
    truncation: Truncation,
) -> Result<Tensor> {
    let Truncation {
        temperature, top_p, ..
    } = truncation;
    let (rows, vocab) = logits.dims2()?;
    let ids = top_ids(logits, k)?;
    let tops = logits
        .gather(&ids, 1)?
        .to_device(&Device::Cpu)?
        .to_vec2::<f32>()?;
    let mut kept = vec![0f32; rows * k];
    for (kept, tops) in kept.chunks_exact_mut(k).zip(tops) {
        let largest = f64::from(tops[0]);
        let weights: Vec<f64> = tops
            .iter()
            .map(|logit| ((f64::from(*logit) - largest) / temperature).exp())
            .collect();
        kept[..nucleus(&weights, top_p)].fill(1.0);
    }
    let targets = targets.unsqueeze(1)?;
    let device = logits.device();
    let own = Tensor::ones((rows, 1), logits.dtype(), device)?;
    let kept = Tensor::from_vec(kept, (rows, k), device)?;
    let keep = logits
        .zeros_like()?
        .scatter_add(&ids, &kept, 1)?
        .scatter_add(&targets, &own, 1)?;
    keep.gt(0f32)?
        .where_cond(logits, &Tensor::full(OUT, (rows, vocab), device)?)
}

/// Number of the descending `weights` that reach the fraction `top_p` of their sum; at least one.
pub fn nucleus(weights: &[f64], top_p: f64) -> usize {
    if top_p == 1.0 {
        return weights.len();
    }
    let limit = top_p * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        sum += weight;
        if sum >= limit {
            return index + 1;
        }
    }
    weights.len()
}
