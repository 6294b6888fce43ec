//! Stage 5: the gradient of the reduced loss, over the kept tokens, one micro-batch after another.

use anyhow::{Context, Result, bail};
use capo_plugin::Reduction;

use crate::batch::StepBatch;
use crate::config::Denominator;
use crate::model::{Forward, Gradients, Policy};
use crate::stages::mask::Keep;
use crate::stages::objective::TokenLoss;
use crate::stages::score::Work;

/// A reduced loss.
#[derive(Debug)]
pub struct Reduced {
    /// The loss.
    pub loss: f64,
    /// `[B, T]`: its derivative by each token's log-probability; zero for rejected tokens.
    pub seed: Vec<f32>,
}

/// Reduces a loss over the kept tokens of the whole batch, so that micro-batches only split the work.
///
/// # Errors
///
/// When the objective asks for a reduction that this host does not know.
pub fn reduce(
    token_loss: &TokenLoss,
    batch: &StepBatch,
    keep: &Keep,
    denominator: Denominator,
    max_length: usize,
) -> Result<Reduced> {
    let counted = match denominator {
        Denominator::Kept => &keep.keep,
        Denominator::Original => &batch.completion_mask,
    };
    let count = |tokens: &[u8]| tokens.iter().map(|&token| u64::from(token)).sum::<u64>().max(1) as f64;
    let completions = batch.dims.completions as f64;
    let (mut loss, mut seed) = (0.0, vec![0.0; batch.dims.len()]);
    let all = count(counted);
    for b in 0..batch.dims.completions as usize {
        let row = batch.dims.row(b);
        let weight = match token_loss.reduction {
            Reduction::COMPLETION_MEAN => 1.0 / (completions * count(&counted[row.clone()])),
            Reduction::FIXED_LENGTH => 1.0 / (completions * max_length as f64),
            Reduction::TOKEN_MEAN => 1.0 / all,
            Reduction(other) => {
                bail!("the objective asks for reduction {other}, which this host does not know (it knows 0 to 2)")
            }
        };
        for i in row.filter(|&i| keep.keep[i] == 1) {
            loss += weight * f64::from(token_loss.loss[i]);
            seed[i] = (weight * f64::from(token_loss.dloss_dlogp[i])) as f32;
        }
    }
    Ok(Reduced { loss, seed })
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
        let gradients = policy.forward(&batch.rows(rows), work.loss_temperature)?.backward(seed)?;
        match &mut total {
            None => total = Some(gradients),
            Some(total) => total.accumulate(&gradients)?,
        }
    }
    total.context("the batch holds no completion")
}
