//! Metrics of a step's effect: `step/...`, every `train.measure_step` steps.

use anyhow::{Context, Result};
use candle_core::{DType, Tensor};

use super::batch::StepBatch;
use super::measure::Proposal;
use crate::metrics::Metrics;
use crate::model::LastLayerOutputs;

/// The share of the batch on which the KL divergence is measured.
const FRACTION: f64 = 0.25;

/// True if the step after `steps` steps is measured. Every `every`-th step is; 0 measures none.
pub fn is_due(steps: u64, every: u64) -> bool {
    every > 0 && (steps + 1).is_multiple_of(every)
}

/// Records the effect of `step` as it is applied. `token_weights` `[B, T]` holds each token's weight in the gradient.
pub fn record(metrics: &mut Metrics, step: &mut Proposal<'_>, batch: &StepBatch, token_weights: &[f32]) -> Result<()> {
    metrics.record("step/kl", step.kl(FRACTION)?);
    metrics.record("step/update_norm", step.norm()?);
    if step.trains_head() {
        metrics.record("step/last_layer_kl", step.kl_by_head()?);
        metrics.record("step/unused_head_update", step.unused_head_norm()?);
    }
    let tail = tail_mass(batch, step.temperature())?;
    metrics.record("step/tail_mass", tail);
    let accepted = || batch.advantages.iter().zip(token_weights).filter(|(_, weight)| **weight > 0.0);
    let count = accepted().count();
    if count > 0 {
        metrics.record("step/kept_advantage", accepted().map(|(a, _)| f64::from(*a)).sum::<f64>() / count as f64);
    }
    Ok(())
}

/// Probability outside the top K tokens under the old policy, averaged over completion tokens.
fn tail_mass(batch: &StepBatch, temperature: f64) -> Result<f64> {
    // Rounding may make the remaining probability negative.
    let outside: f64 = match batch.last_layer.as_ref().context("the last layer's data was not kept")? {
        LastLayerOutputs::Host(data) => {
            let tokens = data.topk_logits.chunks(data.k.max(1)).zip(&data.logsumexp).zip(&batch.completion_mask);
            let of_token = |(logits, lse): (&[f32], &f32)| {
                logits.iter().map(|z| (f64::from(*z) / temperature - f64::from(*lse)).exp()).sum::<f64>()
            };
            tokens.filter(|(_, mask)| **mask == 1).map(|(token, _)| (1.0 - of_token(token)).max(0.0)).sum()
        }
        LastLayerOutputs::Device(data) => {
            let logits = (data.topk_logits.to_dtype(DType::F64)? / temperature)?;
            let logps = logits.broadcast_sub(&data.logsumexp.to_dtype(DType::F64)?.unsqueeze(1)?)?;
            let outside = logps.exp()?.sum(1)?.affine(-1.0, 1.0)?.relu()?;
            let mask = Tensor::from_slice(&batch.completion_mask, batch.completion_mask.len(), outside.device())?;
            (outside * mask.to_dtype(DType::F64)?)?.sum_all()?.to_scalar()?
        }
    };
    Ok(outside / batch.completion_tokens().max(1) as f64)
}
