//! Stage 5, the phase `backward`: reduces the loss of the kept tokens to one number, and computes
//! its gradient, one micro-batch at a time.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use capo_loader::decision::Decision;
use capo_plugin::{Denominator, Dims, OptimizerKind, Reduction};
use host_model::Gradients;

use crate::stages::batch::{Factored, SampledBatch, StepBatch, StepInfo};
use crate::stages::logps::{Pass, Work};

/// A loss reduced to one number, with its derivatives.
#[derive(Debug)]
pub struct Reduced {
    pub loss: f64,
    /// The loss without the entropy bonus; `None` without [`Reduced::add_entropy_bonus`].
    pub policy_loss: Option<f64>,
    /// `[B, T]`: derivative of the loss by each token's log-probability; zero for rejected tokens.
    pub d_logps: Vec<f32>,
    /// `[B, T]`: derivative of the loss over all tokens, rejected ones included, minus `d_logps`.
    /// `None` if the optimizer does not ask for it, or if it and `rest_entropy` would be 0 for all
    /// tokens.
    pub rest: Option<Vec<f32>>,
    /// `[B, T]`: derivative of the loss by each token's entropy; `None` without
    /// [`Reduced::add_entropy_bonus`].
    pub d_entropy: Option<Vec<f32>>,
    /// `[B, T]`: derivative of the loss by each token's entropy if the bonus covered rejected
    /// tokens too, minus `d_entropy`. `None` without a bonus, or if it would be 0 for all tokens.
    pub rest_entropy: Option<Vec<f32>>,
    /// The share of the squared gradient that each mask rejected, in the order of the masks.
    ///
    /// A token's part of the squared gradient is the square of `scale · dloss_dlogp · (1 − p)`, the
    /// derivative of the unmasked loss by the token's own logit. Products of different tokens and
    /// the layers below are ignored.
    pub rejected: Vec<f64>,
    /// The share of the squared gradient that each weight removed, in the order of the weights. It
    /// is negative for a weight that increases the gradient.
    pub weighted_away: Vec<f64>,
}

/// The gradients of one optimizer step.
#[derive(Debug)]
pub struct StepGradients {
    /// Gradients of the reduced loss, over the kept tokens.
    pub kept: Gradients,
    /// Gradients of the rejected part, [`Reduced::rest`] and `rest_entropy`; `None` if no token was
    /// rejected, or the optimizer does not ask.
    pub rejected: Option<Gradients>,
    /// Duration of the backward passes for `rejected`.
    pub second_pass: Duration,
}

impl StepGradients {
    /// Duration of the backward passes for [`Self::rejected`]; `None` without these gradients.
    pub fn second_pass(&self) -> Option<Duration> {
        self.rejected.as_ref().map(|_| self.second_pass)
    }
}

/// Reduces the loss of the whole batch to one number: the sum over the kept tokens, each times its
/// weight. The loss is not reduced per micro-batch, so micro-batches only split the work.
///
/// Weights do not change the number of tokens by which the sum is divided: a kept token counts as
/// one. If there is a `factored` loss, it is reduced instead, with its own weights.
pub fn reduce(
    batch: &StepBatch,
    info: &StepInfo,
    decision: &Decision,
    factored: Option<&Factored>,
) -> Result<Reduced> {
    let (token_loss, token_weights) = match factored {
        None => (&batch.loss, &decision.token_weights),
        Some(factored) => (&factored.loss, &factored.token_weights),
    };
    let sampled = batch.sampled();
    let scales = match info.denominator {
        Denominator::KEPT => scales(sampled.dims(), info, &decision.token_mask)?,
        _ => scales(sampled.dims(), info, sampled.completion_mask())?,
    };
    let mut loss = 0.0;
    let mut d_logps = vec![0.0; sampled.dims().len()];
    for (b, scale) in scales.into_iter().enumerate() {
        for i in sampled.dims().row(b) {
            if token_weights[i] == 0.0 {
                continue;
            }
            let scale = scale * f64::from(token_weights[i]);
            loss += scale * f64::from(token_loss.loss[i]);
            d_logps[i] = (scale * f64::from(token_loss.dloss_dlogp[i])) as f32;
        }
    }
    let squares = squares(batch, info)?;
    Ok(Reduced {
        loss,
        policy_loss: None,
        rest: rest(batch, info, &d_logps)?,
        d_logps,
        d_entropy: None,
        rest_entropy: None,
        rejected: rejected_shares(decision, &squares),
        weighted_away: weighted_away_shares(decision, &squares),
    })
}

/// Computes [`Reduced::rejected`] from each token's part of the squared gradient.
fn rejected_shares(decision: &Decision, squares: &[f64]) -> Vec<f64> {
    let all: f64 = squares.iter().sum();
    let mut shares = Vec::new();
    for mask in &decision.rejected {
        let rejected = mask.tokens.iter().map(|&i| squares[i]).sum();
        shares.push(share(rejected, all));
    }
    shares
}

/// Computes [`Reduced::weighted_away`] from each token's part of the squared gradient.
fn weighted_away_shares(decision: &Decision, squares: &[f64]) -> Vec<f64> {
    let all: f64 = squares.iter().sum();
    let mut shares = Vec::new();
    for weight in &decision.factors {
        let removed = weight
            .of_tokens()
            .map(|(i, factor)| (1.0 - f64::from(factor).powi(2)) * squares[i])
            .sum();
        shares.push(share(removed, all));
    }
    shares
}

fn share(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

/// Computes [`Reduced::rest`].
fn rest(batch: &StepBatch, info: &StepInfo, d_logps: &[f32]) -> Result<Option<Vec<f32>>> {
    if info.optimizer.kind != OptimizerKind::ADAMW_KEPT_AND_REJECTED {
        return Ok(None);
    }
    let sampled = batch.sampled();
    let scales = scales(sampled.dims(), info, sampled.completion_mask())?;
    let mut rest = vec![0.0; sampled.dims().len()];
    for (b, scale) in scales.into_iter().enumerate() {
        for i in sampled.dims().row(b) {
            if sampled.completion_mask()[i] == 1 {
                rest[i] = (scale * f64::from(batch.loss.dloss_dlogp[i])) as f32 - d_logps[i];
            }
        }
    }
    Ok(nonzero(rest))
}

impl Reduced {
    /// Subtracts `coefficient` times the mean entropy of the tokens that the masks kept from the
    /// loss (TRL `entropy_coef`). Weights do not change this mean.
    pub fn add_entropy_bonus(
        &mut self,
        batch: &StepBatch,
        info: &StepInfo,
        decision: &Decision,
        coefficient: f64,
    ) {
        let token_mask = decision
            .factors
            .first()
            .map_or(&decision.token_mask, |weight| &weight.token_mask);
        let scale = coefficient / count(token_mask);
        let kept = batch
            .scored
            .entropy()
            .iter()
            .zip(token_mask)
            .filter(|(_, token)| **token == 1);
        self.policy_loss = Some(self.loss);
        self.loss -= scale * kept.map(|(entropy, _)| f64::from(*entropy)).sum::<f64>();
        let d_entropy: Vec<f32> = token_mask
            .iter()
            .map(|&token| -(scale as f32) * f32::from(token))
            .collect();
        if info.optimizer.kind == OptimizerKind::ADAMW_KEPT_AND_REJECTED {
            let all = batch.sampled().completion_mask();
            let scale = (coefficient / count(all)) as f32;
            let rest = all
                .iter()
                .zip(&d_entropy)
                .map(|(&token, kept)| -scale * f32::from(token) - kept)
                .collect();
            self.rest_entropy = nonzero(rest);
            self.rest = self
                .rest
                .take()
                .or_else(|| self.rest_entropy.as_ref().map(|rest| vec![0.0; rest.len()]));
        }
        self.d_entropy = Some(d_entropy);
    }

    /// Number of completions with a nonzero entry in `rest` or `rest_entropy`.
    pub fn completions_with_rest(&self, dims: &Dims) -> usize {
        let rests = [&self.rest, &self.rest_entropy];
        (0..dims.completions as usize)
            .filter(|&b| {
                rests
                    .iter()
                    .filter_map(|rest| rest.as_ref())
                    .any(|rest| rest[dims.row(b)].iter().any(|&rest| rest != 0.0))
            })
            .count()
    }
}

/// `None` if all of `values` are 0.
fn nonzero(values: Vec<f32>) -> Option<Vec<f32>> {
    values.iter().any(|&value| value != 0.0).then_some(values)
}

/// Number of tokens, at least 1.
fn count(tokens: &[u8]) -> f64 {
    tokens
        .iter()
        .map(|&token| u64::from(token))
        .sum::<u64>()
        .max(1) as f64
}

fn scales(dims: Dims, info: &StepInfo, token_mask: &[u8]) -> Result<Vec<f64>> {
    reduction_scales(dims, info.reduction, info.max_completion_length, token_mask)
}

/// [`Reduction::scales`] of a reduction that this host knows.
pub fn reduction_scales(
    dims: Dims,
    reduction: Reduction,
    max_completion_length: usize,
    counted: &[u8],
) -> Result<Vec<f64>> {
    reduction
        .scales(dims, max_completion_length, counted)
        .with_context(|| {
            format!(
                "the objective asks for reduction {}, which this host does not know (it knows 0 \
                 to 3)",
                reduction.0
            )
        })
}

/// Each token's part of the squared gradient, `[B, T]`, as [`Reduced::rejected`] defines it; 0 on
/// padding.
fn squares(batch: &StepBatch, info: &StepInfo) -> Result<Vec<f64>> {
    let sampled = batch.sampled();
    let scales = scales(sampled.dims(), info, sampled.completion_mask())?;
    let mut squares = Vec::with_capacity(sampled.dims().len());
    for i in 0..sampled.dims().len() {
        let scale =
            scales[i / sampled.dims().tokens as usize] * f64::from(sampled.completion_mask()[i]);
        let by_logit = scale
            * f64::from(batch.loss.dloss_dlogp[i])
            * -f64::from(batch.scored.logps()[i]).exp_m1();
        squares.push(by_logit * by_logit);
    }
    Ok(squares)
}

/// The gradients of the reduced loss and of its rejected part. The second backward pass, for the
/// rejected part, covers only rows with a nonzero `rest`.
pub fn accumulate(
    pass: Pass,
    batch: &SampledBatch,
    reduced: &Reduced,
    work: Work,
) -> Result<StepGradients> {
    let Pass { policy, forwards } = pass;
    let tokens = batch.dims().tokens as usize;
    let micro_batches = work.micro_batches(batch.dims().completions as usize);
    let mut total = StepGradients {
        kept: Gradients::default(),
        rejected: None,
        second_pass: Duration::ZERO,
    };
    for (rows, forward) in micro_batches.zip(forwards) {
        let places = rows.start * tokens..rows.end * tokens;
        let forward = match forward {
            Some(forward) => forward,
            None => policy.forward(&batch.sequences.slice(rows), work.loss_temperature)?,
        };
        if let Some(rest) = part(&reduced.rest, &places) {
            policy.device().synchronize()?;
            let started = Instant::now();
            if let Some(rest_entropy) = part(&reduced.rest_entropy, &places) {
                // No row of the bonus is 0: if one token is rejected, the bonus of all others
                // grows.
                let rejected = total.rejected.get_or_insert_default();
                forward.clone().finish(rest, Some(rest_entropy), rejected)?;
            } else if let Some(gradients) = forward.backward_of_nonzero(rest)? {
                let rejected = total.rejected.get_or_insert_default();
                rejected.accumulate(gradients)?;
            }
            policy.device().synchronize()?;
            total.second_pass += started.elapsed();
        }
        let d_logps = &reduced.d_logps[places.clone()];
        forward.finish(d_logps, part(&reduced.d_entropy, &places), &mut total.kept)?;
    }
    Ok(total)
}

/// The `values` at `places`, if there are any.
fn part<'a>(values: &'a Option<Vec<f32>>, places: &Range<usize>) -> Option<&'a [f32]> {
    values.as_ref().map(|values| &values[places.clone()])
}
