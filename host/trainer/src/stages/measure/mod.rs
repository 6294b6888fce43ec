//! Measures the effect of an optimizer step on the policy, between the gradient and the new
//! weights, each number on first request.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use capo_plugin::{Measurements, PluginError};
use host_model::optim::Optimizer;
use host_model::{Group, Heads, Params, Policy, head_name, update};

use super::batch::{BatchWithLogps, StepInfo};
use super::logps::Work;

/// A step of the optimizer, and the batch behind it.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// The policy with the new weights.
    pub policy: &'a Policy,
    /// The weights before the step.
    pub before: &'a Params,
    pub optimizer: &'a Optimizer,
    /// The weights in groups, which a control scales separately.
    pub groups: &'a [Group],
    pub batch: &'a BatchWithLogps,
}

/// A step that the optimizer proposes. Step controls measure it and shorten it.
///
/// # What a step control sees
///
/// The trainer calls [`capo_plugin::StepControl::control`] after the optimizer has changed the
/// weights, and before anybody uses them. A control gets
///
/// * the batch, with everything that masks and weights see, and the objective's losses. Its
///   learning rate is the step's, times the shares that earlier controls left.
/// * the weight of each token in the gradient, `[B, T]`: 0 for a token that a mask rejected.
/// * name and number of parameters of each group: the embedding, each block, the last layer.
/// * a [`Proposal`], through the trait [`Measurements`]: the norm of the step in each group, half
///   the squared step in Adam's Fisher metric, the KL divergence that a share of the step or the
///   last layer's change causes, the cosine of the gradient with the previous step, and the
///   gradient's norm. A number is computed when a control first asks for it, and kept for those
///   that ask later.
///
/// It answers with a factor for each group. The next control sees the step with these factors
/// applied.
pub struct Proposal<'a> {
    step: Step<'a>,
    /// Indices of the completions, in the order in which measurements take them.
    order: Vec<usize>,
    work: Work,
    known: Known,
    /// Cosine between the previous step and this step's `−gradient`, where it is known.
    pub alignment: Option<f64>,
    /// Euclidean norm of the gradient before clipping, where it is known.
    pub gradient_norm: Option<f64>,
}

/// Measurements of the step at its current length, as far as they are known.
#[derive(Default)]
struct Known {
    norms: Option<Vec<f64>>,
    fisher: Option<f64>,
    last_layer_kl: Option<f64>,
    /// KL divergence in nats, by number of completions.
    kl: BTreeMap<usize, f64>,
}

impl<'a> Proposal<'a> {
    /// The proposal to take `step`. Seed and number of the step in `info` determine the order in
    /// which measurements take the completions.
    pub fn new(step: Step<'a>, info: &StepInfo, work: Work) -> Self {
        let completions = step.batch.sampled.dims().completions as usize;
        let mut rng = host_rng::stream(info.seed, "step.measure", &[info.step]);
        Self {
            step,
            order: host_rng::permutation(&mut rng, completions),
            work,
            known: Known::default(),
            alignment: None,
            gradient_norm: None,
        }
    }

    /// Scales the step by `scales`, one per group. Returns the share of its length that remains.
    pub fn scale(&mut self, scales: &[f64]) -> Result<f64> {
        let applied = self.share(scales)?;
        if scales.iter().any(|scale| *scale != 1.0) {
            let after = self.step.policy.params();
            update::scale(self.step.before, after, self.step.groups, scales)?;
            self.known = Known::default();
        }
        Ok(applied)
    }

    /// The share of the step's length that remains after `scales`. Norms are computed only if the
    /// scales differ.
    fn share(&mut self, scales: &[f64]) -> Result<f64> {
        if scales.iter().all(|scale| *scale == scales[0]) {
            return Ok(scales[0]);
        }
        let norms = self.group_norms()?;
        let mut whole = 0.0;
        let mut left = 0.0;
        for (norm, scale) in norms.iter().zip(scales) {
            whole += norm * norm;
            left += (norm * scale) * (norm * scale);
        }
        Ok(if whole > 0.0 {
            (left / whole).sqrt()
        } else {
            1.0
        })
    }

    /// The squared step, summed over each group. `factor` gives factors of its summands.
    fn squares(&self, factor: Option<&update::Factor<'_>>) -> Result<Vec<f64>> {
        let after = self.step.policy.params();
        update::squares(self.step.before, after, self.step.groups, factor)
    }

    fn group_norms(&mut self) -> Result<&[f64]> {
        if self.known.norms.is_none() {
            let squares = self.squares(None)?;
            self.known.norms = Some(squares.into_iter().map(f64::sqrt).collect());
        }
        Ok(self.known.norms.as_deref().unwrap_or_default())
    }

    /// Euclidean norm of the step.
    pub fn norm(&mut self) -> Result<f64> {
        let norms = self.group_norms()?;
        Ok(norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt())
    }

    /// True if the head is part of the step.
    pub fn trains_head(&self) -> bool {
        self.step.policy.adapter().is_none()
    }

    /// Euclidean norm of the step in the rows of the head whose tokens occur in no completion of
    /// the batch.
    pub fn unused_head_norm(&self) -> Result<f64> {
        let config = self.step.policy.config();
        let sampled = &self.step.batch.sampled;
        let mut used = vec![false; config.vocab_size];
        for (id, mask) in sampled
            .arrays
            .completion_ids
            .iter()
            .zip(sampled.completion_mask())
        {
            if *mask == 1 {
                used[*id as usize] = true;
            }
        }
        let head = head_name(config);
        let before = self.step.before.get(head)?;
        update::unused_rows_norm(before, self.step.policy.params().get(head)?, &used)
    }

    /// Divisor of the logits.
    pub fn temperature(&self) -> f64 {
        self.work.loss_temperature
    }

    /// Computes `½ Σ Δ² v̂`: half the squared step, weighted with Adam's second moment.
    fn adams_fisher(&mut self) -> Result<f64> {
        if let Some(fisher) = self.known.fisher {
            return Ok(fisher);
        }
        let (_, correction) = self.second_moment(&self.step.groups[0].tensors[0])?;
        let squares = self.squares(Some(&|tensor: &str| Ok(self.second_moment(tensor)?.0)))?;
        let sum: f64 = squares.iter().sum();
        Ok(*self.known.fisher.insert(0.5 * sum / correction))
    }

    fn second_moment(&self, tensor: &str) -> Result<(Tensor, f64)> {
        self.step.optimizer.second_moment(tensor)?.context(
            "the optimizer keeps no second moment (measure the KL itself, or train with \
             `train.optimizer = \"adamw\"`)",
        )
    }

    /// The features of the old policy, `[B * T, D]`.
    fn features(&self) -> Result<&Tensor> {
        let features = self.step.batch.hidden.as_ref();
        features.context("the features of the old policy were not kept")
    }

    /// The last layers before and after the step.
    fn heads(&self) -> Result<Heads> {
        Heads::new(
            self.step.policy,
            self.step.before,
            self.work.loss_temperature,
        )
    }

    /// KL divergence that the change of the head causes by itself, averaged over all completion
    /// tokens, nats.
    pub fn kl_by_head(&mut self) -> Result<f64> {
        if let Some(kl) = self.known.last_layer_kl {
            return Ok(kl);
        }
        let tokens = places(self.step.batch.sampled.completion_mask());
        let hidden = select(self.features()?, &tokens)?;
        let kl = self.heads()?.divergence_by_head(&hidden)? / tokens.len().max(1) as f64;
        Ok(*self.known.last_layer_kl.insert(kl))
    }

    /// KL divergence that `share` of the step would cause, measured as [`Self::kl`] measures the
    /// whole. The weights move to this share and back. Meanwhile a copy of them is held. The
    /// gradients, which took as much memory, are freed by then.
    fn kl_of_part(&mut self, fraction: f64, share: f64) -> Result<f64> {
        if share == 1.0 {
            return self.kl(fraction);
        }
        let Step {
            before,
            policy,
            groups,
            ..
        } = self.step;
        let whole = policy.params().deep_copy(DType::F32)?;
        let known = std::mem::take(&mut self.known);
        update::scale(before, policy.params(), groups, &vec![share; groups.len()])?;
        let kl = self.kl(fraction);
        update::scale(&whole, policy.params(), groups, &vec![0.0; groups.len()])?;
        self.known = known;
        kl
    }

    /// KL divergence averaged over the completion tokens of a share `fraction` of the completions,
    /// at least one, nats.
    pub fn kl(&mut self, fraction: f64) -> Result<f64> {
        ensure!(
            fraction > 0.0 && fraction <= 1.0,
            "asked for the KL on {fraction} of the batch (it must be above 0 and at most 1)"
        );
        let all = self.order.len();
        let count = ((fraction * all as f64).ceil() as usize).clamp(1, all);
        if let Some(kl) = self.known.kl.get(&count) {
            return Ok(*kl);
        }
        let mut completions = self.order[..count].to_vec();
        completions.sort_unstable();
        let sampled = &self.step.batch.sampled;
        let heads = self.heads()?;
        let mut sum = 0.0;
        let mut tokens = 0;
        for completions in completions.chunks(self.work.micro_batch.max(1)) {
            // The places of the tokens among those of the whole batch, and of these completions.
            let mut in_batch = Vec::new();
            let mut mask = Vec::new();
            for &b in completions {
                let row = sampled.dims().row(b);
                mask.extend_from_slice(&sampled.completion_mask()[row.clone()]);
                in_batch.extend(
                    row.filter(|&i| sampled.completion_mask()[i] == 1)
                        .map(|i| i as u32),
                );
            }
            let rows = sampled.sequences.select(completions);
            let new = self
                .step
                .policy
                .forward_detached(&rows, self.work.loss_temperature)?
                .hidden()?;
            sum += heads.divergence(
                &select(self.features()?, &in_batch)?,
                &select(&new, &places(&mask))?,
            )?;
            tokens += in_batch.len();
        }
        let kl = sum / tokens.max(1) as f64;
        self.known.kl.insert(count, kl);
        Ok(kl)
    }
}

/// Indices at which `mask` is 1.
fn places(mask: &[u8]) -> Vec<u32> {
    (0..mask.len())
        .filter(|&i| mask[i] == 1)
        .map(|i| i as u32)
        .collect()
}

fn select(rows: &Tensor, places: &[u32]) -> Result<Tensor> {
    Ok(rows.index_select(&Tensor::from_slice(places, places.len(), rows.device())?, 0)?)
}

fn failed(error: anyhow::Error) -> PluginError {
    PluginError::failed(format!("{error:#}"))
}

impl Measurements for Proposal<'_> {
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError> {
        norms.copy_from_slice(self.group_norms().map_err(failed)?);
        Ok(())
    }

    fn fisher(&mut self) -> Result<f64, PluginError> {
        self.adams_fisher().map_err(failed)
    }

    fn last_layer_kl(&mut self) -> Result<f64, PluginError> {
        self.kl_by_head().map_err(failed)
    }

    fn measure_kl(&mut self, fraction: f64, share: f64) -> Result<f64, PluginError> {
        self.kl_of_part(fraction, share).map_err(failed)
    }

    fn alignment(&mut self) -> Result<Option<f64>, PluginError> {
        Ok(self.alignment.filter(|cosine| cosine.is_finite()))
    }

    fn gradient_norm(&mut self) -> Result<Option<f64>, PluginError> {
        Ok(self.gradient_norm.filter(|norm| norm.is_finite()))
    }
}

#[cfg(test)]
mod tests;
