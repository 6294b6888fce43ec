//! Stage 3, in the phase `judge`: computes a loss per token and its derivative, from advantages and
//! log-probabilities.

use anyhow::Result;
use capo_loader::decision::Decision;
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
    Ok(StepBatch {
        scored: batch,
        advantages,
        loss,
    })
}

fn ask(
    objective: &mut ObjectiveHandle,
    sink: &mut dyn Sink,
    batch: &BatchWithLogps,
    advantages: &[f32],
    info: &StepInfo,
) -> Result<TokenLoss> {
    let n = batch.sampled.dims().len();
    let mut out = TokenLoss {
        loss: vec![0.0; n],
        dloss_dlogp: vec![0.0; n],
    };
    objective.evaluate(
        sink,
        &batch.view(info, advantages),
        &mut out.loss,
        &mut out.dloss_dlogp,
    )?;
    Ok(out)
}

/// The loss to reduce in place of the batch's, if masks and weights among `names` changed any
/// token. They are then factors of the loss, as in TRL's corresponding settings.
///
/// If the tokens of a completion share one ratio, a token's loss depends on all their
/// log-probabilities, and so does a factor's effect. No factor of each token's own derivative could
/// express this. Losses are proportional to the advantages, so the objective is evaluated again
/// with advantages times factors. A penalty on the distance from the reference stays unscaled, as
/// in TRL.
///
/// A token that another mask rejected earlier has no factor: it counts fully.
pub fn factor(
    objective: &mut ObjectiveHandle,
    sink: &mut dyn Sink,
    batch: &StepBatch,
    info: &StepInfo,
    names: &[String],
    decision: &Decision,
) -> Result<Option<Factored>> {
    let completion_mask = batch.sampled().completion_mask();
    let mut of_loss = vec![1.0; completion_mask.len()];
    let mut of_gradient: Vec<f32> = completion_mask
        .iter()
        .map(|&mask| f32::from(mask))
        .collect();
    for rejected in &decision.rejected {
        let factors = if names.contains(&rejected.by) {
            &mut of_loss
        } else {
            &mut of_gradient
        };
        rejected.tokens.iter().for_each(|&i| factors[i] = 0.0);
    }
    for weight in &decision.factors {
        let factors = if names.contains(&weight.by) {
            &mut of_loss
        } else {
            &mut of_gradient
        };
        weight
            .of_tokens()
            .for_each(|(i, factor)| factors[i] *= factor);
    }
    if of_loss.iter().all(|&factor| factor == 1.0) {
        return Ok(None);
    }
    let advantages: Vec<f32> = batch
        .advantages
        .iter()
        .zip(&of_loss)
        .map(|(advantage, factor)| advantage * factor)
        .collect();
    let loss = ask(objective, sink, &batch.scored, &advantages, info)?;
    Ok(Some(Factored {
        loss,
        token_weights: of_gradient,
    }))
}
