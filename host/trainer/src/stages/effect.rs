//! A step's effect on the policy, measured every `train.measure_step` steps.

use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use host_model::LastLayerOutputs;

use super::batch::{BatchWithLogps, SampledBatch, StepBatch};
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
    let SampledBatch {
        completion_mask, ..
    } = &batch.sampled;
    // Rounding may make the remaining probability negative.
    let outside: f64 = match batch
        .last_layer
        .as_ref()
        .context("the last layer's data was not kept")?
    {
        LastLayerOutputs::Host(data) => {
            let tokens = data
                .topk_logits
                .chunks(data.k.max(1))
                .zip(&data.logsumexp)
                .zip(completion_mask);
            let mut outside = 0.0;
            for ((logits, lse), _) in tokens.filter(|(_, mask)| **mask == 1) {
                let inside: f64 = logits
                    .iter()
                    .map(|z| (f64::from(*z) / temperature - f64::from(*lse)).exp())
                    .sum();
                outside += (1.0 - inside).max(0.0);
            }
            outside
        }
        LastLayerOutputs::Device(data) => {
            let logits = (data.topk_logits.to_dtype(DType::F64)? / temperature)?;
            let logps =
                logits.broadcast_sub(&data.logsumexp.to_dtype(DType::F64)?.unsqueeze(1)?)?;
            let outside = logps.exp()?.sum(1)?.affine(-1.0, 1.0)?.relu()?;
            let mask =
                Tensor::from_slice(completion_mask, completion_mask.len(), outside.device())?;
            (outside * mask.to_dtype(DType::F64)?)?
                .sum_all()?
                .to_scalar()?
        }
    };
    Ok(outside / batch.sampled.completion_tokens().max(1) as f64)
}
