//! Measures the effect of an optimizer step on the policy, between the gradient and the new
//! weights, each number on first request.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use capo_plugin::{Measurements, PluginError};
use host_model::optim::Optimizer;
use host_model::{Group, Heads, Params, Policy, head_name, update};

use super::batch::BatchWithLogps;
use super::logps::Work;

/// The step from the weights `before` to the policy's current weights.
pub struct Proposal<'a> {
    policy: &'a Policy,
    before: &'a Params,
    optimizer: &'a Optimizer,
    groups: &'a [Group],
    batch: &'a BatchWithLogps,
    /// Indices of the completions, in the order in which measurements take them.
    order: Vec<usize>,
    work: Work,
    known: Known,
    /// Cosine between the previous step and this step's `−gradient`, where it is known.
    pub alignment: Option<f64>,
}

/// Cached measurements of the step at its current length.
#[derive(Default)]
struct Known {
    norms: Option<Vec<f64>>,
    fisher: Option<f64>,
    last_layer_kl: Option<f64>,
    /// KL divergence in nats, by number of completions.
    kl: BTreeMap<usize, f64>,
}

impl<'a> Proposal<'a> {
    /// The step that `optimizer` proposed. `(seed, step)` determine the completions on which it is
    /// measured.
    pub fn new(
        (policy, before): (&'a Policy, &'a Params),
        optimizer: &'a Optimizer,
        groups: &'a [Group],
        batch: &'a BatchWithLogps,
        (seed, step): (u64, u64),
        work: Work,
    ) -> Self {
        let order = host_rng::permutation(
            &mut host_rng::stream(seed, "step.measure", &[step]),
            batch.sampled.dims().completions as usize,
        );
        Self {
            policy,
            before,
            optimizer,
            groups,
            batch,
            order,
            work,
            known: Known::default(),
            alignment: None,
        }
    }

    /// Scales the step by `scales`, one per group. Returns the share of its length that remains.
    pub fn scale(&mut self, scales: &[f64]) -> Result<f64> {
        let applied = self.share(scales)?;
        if scales.iter().any(|scale| *scale != 1.0) {
            update::scale(self.before, self.policy.params(), self.groups, scales)?;
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
        let squares =
            |norms: &mut dyn Iterator<Item = f64>| norms.map(|norm| norm * norm).sum::<f64>();
        let norms = self.group_norms()?;
        let left = squares(&mut norms.iter().zip(scales).map(|(norm, scale)| norm * scale));
        let whole = squares(&mut norms.iter().copied());
        Ok(if whole > 0.0 {
            (left / whole).sqrt()
        } else {
            1.0
        })
    }

    fn group_norms(&mut self) -> Result<&[f64]> {
        if self.known.norms.is_none() {
            let squares = update::squares(self.before, self.policy.params(), self.groups, None)?;
            self.known.norms = Some(squares.into_iter().map(f64::sqrt).collect());
        }
        Ok(self.known.norms.as_deref().unwrap_or_default())
    }

    /// Euclidean norm of the step.
    pub fn norm(&mut self) -> Result<f64> {
        Ok(self
            .group_norms()?
            .iter()
            .map(|norm| norm * norm)
            .sum::<f64>()
            .sqrt())
    }

    /// True if the head is part of the step.
    pub fn trains_head(&self) -> bool {
        self.policy.adapter().is_none()
    }

    /// Euclidean norm of the step in the rows of the head whose tokens occur in no completion of
    /// the batch.
    pub fn unused_head_norm(&self) -> Result<f64> {
        let config = self.policy.config();
        let mut used = vec![false; config.vocab_size];
        let ids = self
            .batch
            .sampled
            .arrays
            .completion_ids
            .iter()
            .zip(self.batch.sampled.completion_mask());
        ids.filter(|(_, mask)| **mask == 1)
            .for_each(|(id, _)| used[*id as usize] = true);
        let head = head_name(config);
        update::unused_rows_norm(
            self.before.get(head)?,
            self.policy.params().get(head)?,
            &used,
        )
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
        let second = |tensor: &str| Ok(self.second_moment(tensor)?.0);
        let (_, correction) = self.second_moment(&self.groups[0].tensors[0])?;
        let sum: f64 = update::squares(
            self.before,
            self.policy.params(),
            self.groups,
            Some(&second),
        )?
        .iter()
        .sum();
        Ok(*self.known.fisher.insert(0.5 * sum / correction))
    }

    fn second_moment(&self, tensor: &str) -> Result<(Tensor, f64)> {
        self.optimizer.second_moment(tensor)?.context(
            "the optimizer keeps no second moment (measure the KL itself, or train with `train.optimizer = \"adamw\"`)",
        )
    }

    /// The features of the old policy, `[B * T, D]`.
    fn features(&self) -> Result<&Tensor> {
        self.batch
            .hidden
            .as_ref()
            .context("the features of the old policy were not kept")
    }

    /// KL divergence that the head's change alone causes, averaged over all completion tokens,
    /// nats.
    pub fn kl_by_head(&mut self) -> Result<f64> {
        if let Some(kl) = self.known.last_layer_kl {
            return Ok(kl);
        }
        let tokens = places(self.batch.sampled.completion_mask());
        let hidden = select(self.features()?, &tokens)?;
        let sum = Heads::new(self.policy, self.before, self.work.loss_temperature)?
            .divergence_by_head(&hidden)?;
        Ok(*self
            .known
            .last_layer_kl
            .insert(sum / tokens.len().max(1) as f64))
    }

    /// KL divergence that `share` of the step would cause, measured as [`Self::kl`] measures the
    /// whole. A copy of the whole step's weights is held meanwhile; the gradients, which took as
    /// much memory, are freed by then.
    fn kl_of_part(&mut self, fraction: f64, share: f64) -> Result<f64> {
        if share == 1.0 {
            return self.kl(fraction);
        }
        let params = self.policy.params();
        let whole = params.deep_copy(DType::F32)?;
        let known = std::mem::take(&mut self.known);
        let shares = vec![share; self.groups.len()];
        update::scale(self.before, params, self.groups, &shares)?;
        let kl = self.kl(fraction);
        update::scale(&whole, params, self.groups, &vec![0.0; self.groups.len()])?;
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
        let count =
            ((fraction * self.order.len() as f64).ceil() as usize).clamp(1, self.order.len());
        if let Some(kl) = self.known.kl.get(&count) {
            return Ok(*kl);
        }
        let mut completions = self.order[..count].to_vec();
        completions.sort_unstable();
        let heads = Heads::new(self.policy, self.before, self.work.loss_temperature)?;
        let (mut sum, mut tokens) = (0.0, 0);
        for completions in completions.chunks(self.work.micro_batch.max(1)) {
            let mask: Vec<u8> = completions
                .iter()
                .flat_map(|&b| {
                    &self.batch.sampled.completion_mask()[self.batch.sampled.dims().row(b)]
                })
                .copied()
                .collect();
            let of_all: Vec<u32> = (completions.iter())
                .flat_map(|&b| {
                    self.batch
                        .sampled
                        .dims()
                        .row(b)
                        .filter(|&i| self.batch.sampled.completion_mask()[i] == 1)
                })
                .map(|i| i as u32)
                .collect();
            let rows = self.batch.sampled.sequences.select(completions);
            let new = self
                .policy
                .forward_detached(&rows, self.work.loss_temperature)?
                .hidden()?;
            sum += heads.divergence(
                &select(self.features()?, &of_all)?,
                &select(&new, &places(&mask))?,
            )?;
            tokens += of_all.len();
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
}

#[cfg(test)]
mod tests;
