//! A step's effect on the policy, measured every `train.measure_step` steps.

use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use capo_plugin::LastLayer;
use host_model::LastLayerTensors;

use super::batch::{BatchWithLogps, StepBatch};
use super::measure::Proposal;

/// The share of the batch on which the KL divergence is measured.
const FRACTION: f64 = 0.25;

/// True if the step after `steps` steps is measured. Every `every`-th step is; 0 measures none.
pub fn is_due(steps: u64, every: u64) -> bool {
    every > 0 && (steps + 1).is_multiple_of(every)
}

/// The measured effect of a step as it is applied.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Effect {
    /// KL divergence between the policies before and after the step, on a share of the batch, nats
    /// per completion token.
    pub kl: f64,
    /// Euclidean norm of the step.
    pub update_norm: f64,
    /// KL divergence that the head's change alone causes, nats per token, and the norm of the step
    /// in the head's rows that the batch does not use; `None` if the head is not trained.
    pub head: Option<[f64; 2]>,
    /// Probability outside the top K tokens before the step, mean over completion tokens.
    pub tail_mass: f64,
    /// Mean advantage of the tokens that reach the gradient; `None` without such a token.
    pub kept_advantage: Option<f64>,
}

/// Measures `step`. `token_weights` `[B, T]` holds each token's weight in the gradient.
pub fn measure(
    step: &mut Proposal<'_>,
    batch: &StepBatch,
    token_weights: &[f32],
) -> Result<Effect> {
    let kl = step.kl(FRACTION)?;
    let update_norm = step.norm()?;
    let head = if step.trains_head() {
        Some([step.kl_by_head()?, step.unused_head_norm()?])
    } else {
        None
    };
    let tail_mass = tail_mass(&batch.scored, step.temperature())?;
    Ok(Effect {
        kl,
        update_norm,
        head,
        tail_mass,
        kept_advantage: kept_advantage(&batch.advantages, token_weights),
    })
}

/// Mean advantage of the tokens that weigh something; `None` if none does.
fn kept_advantage(advantages: &[f32], token_weights: &[f32]) -> Option<f64> {
    let kept: Vec<f64> = advantages
        .iter()
        .zip(token_weights)
        .filter(|(_, weight)| **weight > 0.0)
        .map(|(advantage, _)| f64::from(*advantage))
        .collect();
    (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / kept.len() as f64)
}

/// Probability outside the top K tokens under the old policy, averaged over completion tokens.
fn tail_mass(batch: &BatchWithLogps, temperature: f64) -> Result<f64> {
    let completion_mask = batch.sampled.completion_mask();
    let outside = match &batch.device_layer {
        Some(layer) => outside_on_device(layer, completion_mask, temperature)?,
        None => {
            let layer = batch.sampled.arrays.last_layer.as_ref();
            let layer = layer.context("the last layer's data was not kept")?;
            outside_on_host(&layer.view(), completion_mask, temperature)?
        }
    };
    Ok(outside / batch.sampled.completion_tokens().max(1) as f64)
}

/// The sum over all completion tokens, in host memory. Rounding may make the remaining probability
/// of a token negative.
fn outside_on_host(layer: &LastLayer<'_>, mask: &[u8], temperature: f64) -> Result<f64> {
    let logits = layer.topk_logits.as_f32()?;
    let logsumexp = layer.logsumexp.as_f32()?;
    let k = logits.len() / logsumexp.len().max(1);
    let mut outside = 0.0;
    for (i, logits) in logits.chunks(k.max(1)).enumerate() {
        if mask[i] == 1 {
            let lse = f64::from(logsumexp[i]);
            let logps = logits.iter().map(|z| f64::from(*z) / temperature - lse);
            outside += (1.0 - logps.map(f64::exp).sum::<f64>()).max(0.0);
        }
    }
    Ok(outside)
}

/// The sum over all completion tokens, on a device.
fn outside_on_device(layer: &LastLayerTensors, mask: &[u8], temperature: f64) -> Result<f64> {
    let logits = (layer.topk_logits.to_dtype(DType::F64)? / temperature)?;
    let logps = logits.broadcast_sub(&layer.logsumexp.to_dtype(DType::F64)?.unsqueeze(1)?)?;
    let outside = logps.exp()?.sum(1)?.affine(-1.0, 1.0)?.relu()?;
    let mask = Tensor::from_slice(mask, mask.len(), outside.device())?;
    Ok((outside * mask.to_dtype(DType::F64)?)?
        .sum_all()?
        .to_scalar()?)
}
