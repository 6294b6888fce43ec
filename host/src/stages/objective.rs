//! Stage 3: computes a loss per token and its derivative, from advantages and log-probabilities.

use anyhow::Result;
use capo_loader::mask::Accepted;
use capo_loader::weight::Weighed;
use capo_plugin::{ObjectiveHandle, Sink};

use crate::stages::batch::{BatchWithLogps, Factored, StepBatch, StepInfo, TokenLoss};

/// The batch with its loss; `advantages` is `[B, T]`.
pub fn evaluate(
    objective: &mut ObjectiveHandle,
    sink: &mut dyn Sink,
    batch: BatchWithLogps,
    advantages: Vec<f32>,
    info: &StepInfo,
) -> Result<StepBatch> {
    let loss = ask(objective, sink, &batch, &advantages, info)?;
    Ok(StepBatch { batch, advantages, loss })
}

fn ask(
    objective: &mut ObjectiveHandle,
    sink: &mut dyn Sink,
    batch: &BatchWithLogps,
    advantages: &[f32],
    info: &StepInfo,
) -> Result<TokenLoss> {
    let n = batch.dims.len();
    let mut out = TokenLoss { loss: vec![0.0; n], dloss_dlogp: vec![0.0; n] };
    objective.evaluate(sink, &batch.view(info, advantages), &mut out.loss, &mut out.dloss_dlogp)?;
    Ok(out)
}

/// The loss to reduce in place of the batch's, if masks and weights among `names` changed any token. They are then factors of the loss, as
/// in TRL's corresponding settings.
///
/// If the tokens of a completion share one ratio, a token's loss depends on all their log-probabilities, and so does a factor's effect.
/// No factor of each token's own derivative could express this. Losses are proportional to the advantages, so the objective is
/// evaluated again with advantages times factors. A penalty on the distance from the reference stays unscaled, as in TRL.
///
/// A token that another mask rejected earlier has no factor: it counts fully.
pub fn factor(
    objective: &mut ObjectiveHandle,
    sink: &mut dyn Sink,
    batch: &StepBatch,
    info: &StepInfo,
    names: &[String],
    (accepted, weighed): (&Accepted, &Weighed),
) -> Result<Option<Factored>> {
    let mut of_loss = vec![1.0; batch.dims.len()];
    let mut of_gradient: Vec<f32> = batch.completion_mask.iter().map(|&mask| f32::from(mask)).collect();
    for rejected in &accepted.rejected {
        let factors = if names.contains(&rejected.by) { &mut of_loss } else { &mut of_gradient };
        rejected.tokens.iter().for_each(|&i| factors[i] = 0.0);
    }
    for given in &weighed.given {
        let factors = if names.contains(&given.weight) { &mut of_loss } else { &mut of_gradient };
        let weights = given.factors.iter().zip(&given.reached);
        let reached = factors.iter_mut().zip(weights).filter(|(_, (_, reached))| **reached == 1);
        reached.for_each(|(factor, (weight, _))| *factor *= weight);
    }
    if of_loss.iter().all(|&factor| factor == 1.0) {
        return Ok(None);
    }
    let advantages: Vec<f32> =
        batch.advantages.iter().zip(&of_loss).map(|(advantage, factor)| advantage * factor).collect();
    let loss = ask(objective, sink, &batch.batch, &advantages, info)?;
    Ok(Some(Factored { loss, token_weights: of_gradient }))
}
