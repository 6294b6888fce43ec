//! Stage 5: the gradient of the reduced loss over the kept tokens, one micro-batch at a time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use capo_loader::decision::{Decision, Factors, Rejected};
use capo_plugin::{Denominator, Dims, OptimizerKind, Reduction};
use host_model::{Forward, Gradients, Policy};

use crate::stages::batch::{Factored, SampledBatch, StepBatch, StepInfo};
use crate::stages::logps::Work;

/// A loss reduced to one number, with its derivatives.
#[derive(Debug)]
pub struct Reduced {
    pub loss: f64,
    /// The loss without the entropy bonus; `None` without [`Reduced::add_entropy_bonus`].
    pub policy_loss: Option<f64>,
    /// `[B, T]`: derivative of the loss by each token's log-probability; zero for rejected tokens.
    pub d_logps: Vec<f32>,
    /// `[B, T]`: derivative of the loss without rejection, minus `d_logps`. `None` if the optimizer
    /// does not ask for it, or if this and `rest_entropy` would be 0 throughout.
    pub rest: Option<Vec<f32>>,
    /// `[B, T]`: derivative of the loss by each token's entropy; `None` without
    /// [`Reduced::add_entropy_bonus`].
    pub d_entropy: Option<Vec<f32>>,
    /// `[B, T]`: what `rest` is to `d_logps`, to `d_entropy`. `None` without a bonus, or if it
    /// would be 0 throughout.
    pub rest_entropy: Option<Vec<f32>>,
    /// The share of the gradient's squares that each mask rejected, in the masks' order. A token's
    /// square is of the unmasked loss's derivative by its own logit,
    /// `scale · dloss_dlogp · (1 − p)`. Terms between tokens and the layers below are ignored.
    pub rejected: Vec<f64>,
    /// The share of the gradient's squares that each weight removed from the tokens that reached
    /// it. It is negative if the weight increases them.
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

/// Reduces the whole batch's loss over the kept tokens, each times its weight. Micro-batches
/// therefore only split the work.
///
/// Weights do not change the token count: a kept token counts as one. If there is a `factored`
/// loss, it is reduced instead, with its own weights.
pub fn reduce(
    batch: &StepBatch,
    info: &StepInfo,
    decision: &Decision,
    factored: Option<&Factored>,
) -> Result<Reduced> {
    let (reduced, token_weights) = match factored {
        None => (&batch.loss, &decision.token_weights),
        Some(factored) => (&factored.loss, &factored.token_weights),
    };
    let dims = batch.sampled().dims();
    let completion_mask = batch.sampled().completion_mask();
    let scales = match info.denominator {
        Denominator::KEPT => scales(dims, info, &decision.token_mask)?,
        _ => scales(dims, info, completion_mask)?,
    };
    let (mut loss, mut d_logps) = (0.0, vec![0.0; dims.len()]);
    for (b, scale) in scales.into_iter().enumerate() {
        for i in dims.row(b).filter(|&i| token_weights[i] != 0.0) {
            let scale = scale * f64::from(token_weights[i]);
            loss += scale * f64::from(reduced.loss[i]);
            d_logps[i] = (scale * f64::from(reduced.dloss_dlogp[i])) as f32;
        }
    }
    let dloss_dlogp = &batch.loss.dloss_dlogp;
    let squares = squares(batch, info, dloss_dlogp)?;
    let all: f64 = squares.iter().sum();
    let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
    let of_mask = |rejected: &Rejected| share(rejected.tokens.iter().map(|&i| squares[i]).sum());
    let of_weight = |weight: &Factors| {
        share(
            weight
                .of_tokens()
                .map(|(i, factor)| (1.0 - f64::from(factor).powi(2)) * squares[i])
                .sum(),
        )
    };
    let rejected = decision.rejected.iter().map(of_mask).collect();
    let weighted_away = decision.factors.iter().map(of_weight).collect();
    let rest = rest(batch, info, &d_logps, dloss_dlogp)?;
    let (policy_loss, d_entropy, rest_entropy) = (None, None, None);
    Ok(Reduced {
        loss,
        policy_loss,
        d_logps,
        rest,
        d_entropy,
        rest_entropy,
        rejected,
        weighted_away,
    })
}

/// Computes [`Reduced::rest`].
fn rest(
    batch: &StepBatch,
    info: &StepInfo,
    d_logps: &[f32],
    dloss_dlogp: &[f32],
) -> Result<Option<Vec<f32>>> {
    if info.optimizer.kind != OptimizerKind::ADAMW_KEPT_AND_REJECTED {
        return Ok(None);
    }
    let dims = batch.sampled().dims();
    let completion_mask = batch.sampled().completion_mask();
    let mut rest = vec![0.0; dims.len()];
    for (b, scale) in scales(dims, info, completion_mask)?.into_iter().enumerate() {
        for i in dims.row(b).filter(|&i| completion_mask[i] == 1) {
            rest[i] = (scale * f64::from(dloss_dlogp[i])) as f32 - d_logps[i];
        }
    }
    Ok(nonzero(rest))
}

impl Reduced {
    /// Subtracts `coefficient` times the mean entropy of the tokens that the masks kept from the
    /// loss (TRL `entropy_coef`). Weights do not count.
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
        let rests = || [&self.rest, &self.rest_entropy].into_iter().flatten();
        let has_rest =
            |b: &usize| rests().any(|rest| rest[dims.row(*b)].iter().any(|&rest| rest != 0.0));
        (0..dims.completions as usize).filter(has_rest).count()
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

/// Scale of each completion's tokens in the reduced loss, `[B]`. `token_mask`, `[B, T]`, is 1 for
/// the tokens of the denominator.
pub fn reduction_scales(
    dims: Dims,
    reduction: Reduction,
    max_completion_length: usize,
    token_mask: &[u8],
) -> Result<Vec<f64>> {
    let (completions, all) = (dims.completions as f64, count(token_mask));
    let scale = |b: usize| match reduction {
        Reduction::COMPLETION_MEAN => Ok(1.0 / (completions * count(&token_mask[dims.row(b)]))),
        Reduction::FIXED_LENGTH => Ok(1.0 / (completions * max_completion_length as f64)),
        Reduction::TOKEN_MEAN => Ok(1.0 / all),
        Reduction::COMPLETION_SUM => Ok(1.0 / completions),
        Reduction(other) => {
            bail!(
                "the objective asks for reduction {other}, which this host does not know (it knows 0 to 3)"
            )
        }
    };
    (0..dims.completions as usize).map(scale).collect()
}

/// `[B, T]`: the squared derivatives behind [`Reduced::rejected`]; 0 on padding.
fn squares(batch: &StepBatch, info: &StepInfo, dloss_dlogp: &[f32]) -> Result<Vec<f64>> {
    let dims = batch.sampled().dims();
    let completion_mask = batch.sampled().completion_mask();
    let scales = scales(dims, info, completion_mask)?;
    let square = |i: usize| {
        let scale = scales[i / dims.tokens as usize] * f64::from(completion_mask[i]);
        let by_logit =
            scale * f64::from(dloss_dlogp[i]) * -f64::from(batch.scored.logps()[i]).exp_m1();
        by_logit * by_logit
    };
    Ok((0..dims.len()).map(square).collect())
}

/// The gradients of the reduced loss and of its rejected part. `forwards` holds the micro-batches'
/// log-probability passes that stored activations. The other micro-batches run their forward pass
/// again. The second backward pass covers only rows with a nonzero `rest`.
pub fn accumulate(
    policy: &Policy,
    forwards: Vec<Option<Forward>>,
    batch: &SampledBatch,
    reduced: &Reduced,
    work: Work,
) -> Result<StepGradients> {
    let dims = batch.dims();
    let tokens = dims.tokens as usize;
    let mut total = StepGradients {
        kept: Gradients::default(),
        rejected: None,
        second_pass: Duration::ZERO,
    };
    for (rows, forward) in work.micro_batches(dims.completions as usize).zip(forwards) {
        let own = rows.start * tokens..rows.end * tokens;
        let forward = match forward {
            Some(forward) => forward,
            None => policy.forward(&batch.sequences.slice(rows), work.loss_temperature)?,
        };
        let of_part = |values| Option::as_deref(values).map(|values: &[f32]| &values[own.clone()]);
        if let Some(rest) = of_part(&reduced.rest) {
            policy.device().synchronize()?;
            let started = Instant::now();
            if let Some(entropy) = of_part(&reduced.rest_entropy) {
                // Where one token is rejected the bonus of all others is larger: no row is 0.
                forward.clone().finish(
                    rest,
                    Some(entropy),
                    total.rejected.get_or_insert_default(),
                )?;
            } else if let Some(rejected) = forward.backward_of_nonzero(rest)? {
                total
                    .rejected
                    .get_or_insert_default()
                    .accumulate(rejected)?;
            }
            policy.device().synchronize()?;
            total.second_pass += started.elapsed();
        }
        forward.finish(
            &reduced.d_logps[own.clone()],
            of_part(&reduced.d_entropy),
            &mut total.kept,
        )?;
    }
    Ok(total)
}
