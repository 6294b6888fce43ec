//! Stage 5: the gradient of the reduced loss, over the kept tokens, one micro-batch after another.

use anyhow::{Context, Result, bail, ensure};
use capo_loader::mask::{Keep, Rejected};
use capo_loader::weight::{Given, Weighed};
use capo_plugin::{Denominator, ObjectiveFn, Reduction};

use crate::model::{Forward, Gradients, Policy};
use crate::stages::batch::{StepBatch, StepInfo, TokenLoss};
use crate::stages::score::Work;

/// A reduced loss.
#[derive(Debug)]
pub struct Reduced {
    /// The loss.
    pub loss: f64,
    /// `[B, T]`: its derivative by each token's log-probability; zero for rejected tokens.
    pub seed: Vec<f32>,
    /// The share of the gradient's squares that each mask rejected, in the masks' order: squares of each token's derivative of the
    /// unmasked loss by its own logit, `weight · dloss_dlogp · (1 − p)`. What tokens have in common, and the layers below, are left out.
    pub rejected: Vec<f64>,
    /// The same share for each weight: what it took from the tokens that reached it; below 0 where it adds to them.
    pub weighted_away: Vec<f64>,
}

/// Whether this host can reduce as `objective` asks.
///
/// # Errors
///
/// When it cannot.
pub fn check_reduction(objective: &ObjectiveFn) -> Result<()> {
    let (id, Reduction(asked)) = (objective.id(), objective.reduction());
    ensure!(
        asked <= 2,
        "component `{id}` asks for reduction {asked}, which this host does not know (it knows 0 to 2; use a newer host)"
    );
    Ok(())
}

/// Reduces the batch's loss over the kept tokens, each times its weight, all at once, so that micro-batches only split the work.
///
/// Weights do not change what is counted: a kept token is one token.
///
/// # Errors
///
/// When the objective asks for a reduction that this host does not know.
pub fn reduce(batch: &StepBatch, info: &StepInfo, keep: &Keep, weighed: &Weighed) -> Result<Reduced> {
    let TokenLoss { loss: losses, dloss_dlogp } =
        batch.token_loss.as_ref().context("no objective has been evaluated")?;
    let counted = if info.denominator == Denominator::KEPT { &keep.keep } else { &batch.completion_mask };
    let weights = weights(batch, info, counted)?;
    let (mut loss, mut seed) = (0.0, vec![0.0; batch.dims.len()]);
    for (b, weight) in weights.into_iter().enumerate() {
        for i in batch.dims.row(b).filter(|&i| keep.keep[i] == 1) {
            let weight = weight * f64::from(weighed.weights[i]);
            loss += weight * f64::from(losses[i]);
            seed[i] = (weight * f64::from(dloss_dlogp[i])) as f32;
        }
    }
    let squares = squares(batch, info, dloss_dlogp)?;
    let all: f64 = squares.iter().sum();
    let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
    let of_mask = |rejected: &Rejected| share(rejected.tokens.iter().map(|&i| squares[i]).sum());
    let of_weight = |given: &Given| {
        let left = given.weights.iter().zip(&given.reached).zip(&squares).filter(|((_, reached), _)| **reached == 1);
        share(left.map(|((weight, _), square)| (1.0 - f64::from(*weight).powi(2)) * square).sum())
    };
    let rejected = keep.rejected.iter().map(of_mask).collect();
    let weighted_away = weighed.given.iter().map(of_weight).collect();
    Ok(Reduced { loss, seed, rejected, weighted_away })
}

/// What each completion's tokens weigh in the reduced loss, `[B]`, where `counted` tokens are counted.
fn weights(batch: &StepBatch, info: &StepInfo, counted: &[u8]) -> Result<Vec<f64>> {
    let count = |tokens: &[u8]| tokens.iter().map(|&token| u64::from(token)).sum::<u64>().max(1) as f64;
    let (completions, all) = (batch.dims.completions as f64, count(counted));
    let weight = |b: usize| match info.reduction {
        Reduction::COMPLETION_MEAN => Ok(1.0 / (completions * count(&counted[batch.dims.row(b)]))),
        Reduction::FIXED_LENGTH => Ok(1.0 / (completions * info.max_completion_length as f64)),
        Reduction::TOKEN_MEAN => Ok(1.0 / all),
        Reduction(other) => {
            bail!("the objective asks for reduction {other}, which this host does not know (it knows 0 to 2)")
        }
    };
    (0..batch.dims.completions as usize).map(weight).collect()
}

/// `[B, T]`: the squares behind [`Reduced::rejected`]; 0 on padding.
fn squares(batch: &StepBatch, info: &StepInfo, dloss_dlogp: &[f32]) -> Result<Vec<f64>> {
    let weights = weights(batch, info, &batch.completion_mask)?;
    let square = |i: usize| {
        let weight = weights[i / batch.dims.tokens as usize] * f64::from(batch.completion_mask[i]);
        let by_logit = weight * f64::from(dloss_dlogp[i]) * -f64::from(batch.logps[i]).exp_m1();
        by_logit * by_logit
    };
    Ok((0..batch.dims.len()).map(square).collect())
}

/// The gradient of the reduced loss. `forward` is the scoring pass where one micro-batch held the whole batch.
///
/// # Errors
///
/// When the device fails.
pub fn accumulate(
    policy: &Policy,
    forward: Option<Forward>,
    batch: &StepBatch,
    seed: &[f32],
    work: Work,
) -> Result<Gradients> {
    if let Some(forward) = forward {
        return forward.backward(seed);
    }
    let (completions, tokens) = (batch.dims.completions as usize, batch.dims.tokens as usize);
    let mut total: Option<Gradients> = None;
    for start in (0..completions).step_by(work.micro_batch) {
        let rows = start..(start + work.micro_batch).min(completions);
        let seed = &seed[rows.start * tokens..rows.end * tokens];
        let gradients = policy.forward(&batch.sequences.slice(rows), work.loss_temperature)?.backward(seed)?;
        match &mut total {
            None => total = Some(gradients),
            Some(total) => total.accumulate(&gradients)?,
        }
    }
    total.context("the batch holds no completion")
}
