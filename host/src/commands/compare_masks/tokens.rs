//! Data about every completion token of the batches.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use capo_plugin::{Batch, BatchBuffer};

use super::super::batches::Batches;
use super::gradient;

/// The completion tokens of all batches, one completion after another.
#[derive(Default)]
pub struct Tokens {
    /// Log-probability of each token under the current policy, in nats.
    pub logps: Vec<f32>,
    /// Advantage of each token, in reward units.
    pub advantages: Vec<f32>,
    /// Squared norm of each token's gradient, by the last layer's weight if `last_layer`, else by
    /// its own logit.
    pub squares: Vec<f64>,
    /// Squared norm of each token's gradient by its own logit.
    by_logit: Vec<f64>,
    /// True if every batch holds the features and logits of the last layer.
    pub last_layer: bool,
    /// Index range of the tokens of each completion that has tokens.
    pub completions: Vec<Range<usize>>,
    /// For each token, the number of less probable tokens; earlier tokens come first among equals.
    pub ranks: Vec<u32>,
}

impl Tokens {
    /// Reads the batches; `look` sees each of them first.
    pub fn read(
        batches: &Batches<'_>,
        look: &mut dyn FnMut(&Path, &BatchBuffer) -> Result<()>,
    ) -> Result<Self> {
        let mut tokens = Self {
            last_layer: true,
            ..Self::default()
        };
        batches.each(|path, batch| {
            look(path, batch)?;
            tokens
                .add(&batch.view())
                .with_context(|| format!("batch file `{}`", path.display()))
        })?;
        ensure!(
            !tokens.logps.is_empty(),
            "the batches hold no completion token (record others)"
        );
        Ok(tokens.ranked())
    }

    fn add(&mut self, batch: &Batch<'_>) -> Result<()> {
        let derivatives = gradient::derivatives(batch)?;
        let layer = batch
            .last_layer
            .as_ref()
            .map(|layer| gradient::Layer::new(batch, layer))
            .transpose()?;
        self.last_layer &= layer.is_some();
        for b in 0..batch.dims.completions as usize {
            let start = self.logps.len();
            for (t, i) in batch
                .dims
                .row(b)
                .enumerate()
                .filter(|(_, i)| batch.completion_mask[*i] == 1)
            {
                let of_logit = (derivatives[i] * gradient::unlikeliness(batch.logps[i])).powi(2);
                let of_layer = layer
                    .as_ref()
                    .map_or(0.0, |layer| derivatives[i].powi(2) * layer.squared_norm(i));
                ensure!(
                    of_logit.is_finite() && of_layer.is_finite() && batch.advantages[i].is_finite(),
                    "advantage or gradient of completion {b}, token {t}, is not finite (record \
                     the batch again)"
                );
                self.by_logit.push(of_logit);
                self.squares.push(of_layer);
                self.logps.push(batch.logps[i]);
                self.advantages.push(batch.advantages[i]);
            }
            if self.logps.len() > start {
                self.completions.push(start..self.logps.len());
            }
        }
        Ok(())
    }

    /// Fills in `ranks`, and uses the measure of gradients that all batches allow.
    fn ranked(mut self) -> Self {
        if !self.last_layer {
            self.squares = std::mem::take(&mut self.by_logit);
        }
        let mut order: Vec<u32> = (0..self.logps.len() as u32).collect();
        order.sort_by(|a, b| self.logps[*a as usize].total_cmp(&self.logps[*b as usize]));
        self.ranks = vec![0; order.len()];
        order
            .iter()
            .zip(0..)
            .for_each(|(token, rank)| self.ranks[*token as usize] = rank);
        self
    }

    /// Mean advantage of the tokens whose indices `which` accepts; `None` if it accepts none.
    pub fn mean_advantage(&self, which: impl Fn(usize) -> bool) -> Option<f64> {
        let taken: Vec<f64> = (0..self.advantages.len())
            .filter(|i| which(*i))
            .map(|i| self.advantages[i].into())
            .collect();
        (!taken.is_empty()).then(|| taken.iter().sum::<f64>() / taken.len() as f64)
    }
}

#[cfg(test)]
impl Tokens {
    /// The completion tokens of one batch.
    pub fn of(batch: &Batch<'_>) -> Result<Self> {
        let mut tokens = Self {
            last_layer: true,
            ..Self::default()
        };
        tokens.add(batch)?;
        Ok(tokens.ranked())
    }
}
