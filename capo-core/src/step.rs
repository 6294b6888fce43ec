//! A proposed step: everything on which it depends besides the model's own moments.

use crate::error::ensure;
use crate::semantics::{Feature, Semantics, TokenGradient};
use crate::{Arrays, Error, LastLayer, OptimizerModel, Policy, cuda};

/// A step that the trainer is about to take.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The batch's last-layer data.
    pub batch: LastLayer<'a>,
    /// `[B, T]`: factor of each token's log-probability; never read on padding.
    pub advantages: &'a [f32],
    /// The distribution from which the tokens were sampled.
    pub policy: Policy,
    /// The loss that the trainer minimises.
    pub loss: Loss<'a>,
    /// The optimizer, which turns a gradient into a direction.
    pub optimizer: OptimizerModel,
    /// Learning rate of this step, at least 0.
    pub learning_rate: f64,
    /// The trainer's own moments of the last layer; with `None` the model keeps its own.
    pub moments: Option<HostMoments<'a>>,
}

/// The part of the trainer's loss that the last-layer model needs.
#[derive(Debug, Clone, Copy)]
pub struct Loss<'a> {
    /// Divisor of the logits in the loss's log-probabilities; above 0.
    pub temperature: f32,
    /// Rule that reduces losses per token to one number.
    pub reduction: Reduction,
    /// The limit on completion length, tokens, at least 1. It is the divisor of
    /// [`Reduction::FixedLength`] and the horizon of [`Certificate`](crate::Certificate).
    pub max_completion_length: usize,
    /// `[B, T]`: the tokens that the reduction counts, if they differ from the tokens that it sums.
    pub counted: Option<&'a [u8]>,
    /// `[B, T]`: derivative of each token's loss by its log-probability, before the reduction.
    /// Needed for [`TokenGradient::Loss`] only; never read on padding.
    pub derivatives: Option<&'a [f32]>,
}

/// Rule that reduces losses per token to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Mean over completions of the mean over their tokens.
    CompletionMean,
    /// Sum over tokens ÷ (completions · limit on their length).
    FixedLength,
    /// Mean over all tokens.
    TokenMean,
    /// Sum over tokens ÷ completions.
    CompletionSum,
}

/// The trainer's own moments of the last layer, from the loss's gradient.
#[derive(Debug, Clone, Copy)]
pub struct HostMoments<'a> {
    /// The moments, on the batch's device.
    pub arrays: MomentArrays<'a>,
    /// Number of steps in the moments.
    pub steps: u64,
}

/// Both moments of the last layer, `[V, D]` each.
#[derive(Debug, Clone, Copy)]
pub enum MomentArrays<'a> {
    /// In host memory.
    Host {
        /// Running mean of gradients.
        exp_avg: &'a [f32],
        /// Running mean of squared gradients.
        exp_avg_sq: &'a [f32],
    },
    /// On a CUDA device.
    Cuda {
        /// Running mean of gradients.
        exp_avg: cuda::Slice<'a, f32>,
        /// Running mean of squared gradients.
        exp_avg_sq: cuda::Slice<'a, f32>,
    },
}

impl Loss<'_> {
    /// Mean over completions of their token means, at temperature 1, with completions of at most
    /// `max_completion_length` tokens.
    pub fn completion_mean(max_completion_length: usize) -> Self {
        let reduction = Reduction::CompletionMean;
        Self {
            temperature: 1.0,
            reduction,
            max_completion_length,
            counted: None,
            derivatives: None,
        }
    }
}

impl Step<'_> {
    pub(crate) fn check(&self, semantics: &Semantics) -> Result<(), Error> {
        self.batch.check()?;
        self.batch
            .check_per_token("advantages", self.advantages.len())?;
        self.policy.check()?;
        self.check_loss(semantics)?;
        self.optimizer.check(semantics)?;
        self.check_learning_rate()?;
        let Some(moments) = self.moments else {
            return Ok(());
        };
        let (first, second, together) = match (&moments.arrays, &self.batch.arrays) {
            (
                MomentArrays::Host {
                    exp_avg,
                    exp_avg_sq,
                },
                arrays,
            ) => (
                exp_avg.len(),
                exp_avg_sq.len(),
                matches!(arrays, Arrays::Host(_)),
            ),
            (
                MomentArrays::Cuda {
                    exp_avg,
                    exp_avg_sq,
                },
                arrays,
            ) => (
                exp_avg.len(),
                exp_avg_sq.len(),
                matches!(arrays, Arrays::Cuda(_)),
            ),
        };
        self.batch.check_matrix("exp_avg", first)?;
        self.batch.check_matrix("exp_avg_sq", second)?;
        ensure(together, || {
            "the trainer's moments and the batch lie in different memory (pass both in host \
             memory, or both on the device)"
        })
    }

    fn check_loss(&self, semantics: &Semantics) -> Result<(), Error> {
        let Loss {
            temperature,
            max_completion_length,
            counted,
            derivatives,
            ..
        } = self.loss;
        ensure(temperature.is_finite() && temperature > 0.0, || {
            format!(
                "the loss's temperature is `{temperature}`, expected a finite number above 0 (1 is \
                 usual)"
            )
        })?;
        ensure(
            max_completion_length > 0,
            || "`max_completion_length` is 0, expected at least 1 (pass the limit on completions)",
        )?;
        counted.map_or(Ok(()), |counted| {
            self.batch.check_per_token("counted", counted.len())
        })?;
        derivatives.map_or(Ok(()), |values| {
            self.batch.check_per_token("derivatives", values.len())
        })?;
        ensure(
            semantics.token_gradient != TokenGradient::Loss || derivatives.is_some(),
            || {
                "`token_gradient` is `loss`, and the step has no loss derivatives (pass them, or \
                 set `token_gradient` to `advantage`)"
            },
        )
    }

    fn check_learning_rate(&self) -> Result<(), Error> {
        let rate = self.learning_rate;
        ensure(rate.is_finite() && rate >= 0.0, || {
            format!(
                "`learning_rate` is {rate}, expected a finite number of at least 0 (pass the rate \
                 of the coming step)"
            )
        })
    }

    /// Factor of the token's `e_a - pi`.
    pub(crate) fn signal(&self, token: usize, semantics: &Semantics) -> f64 {
        match (semantics.token_gradient, self.loss.derivatives) {
            (TokenGradient::Loss, Some(derivatives)) => -f64::from(derivatives[token]),
            _ => f64::from(self.advantages[token]),
        }
    }

    /// Flat position of the feature of the token at flat position `token`.
    pub(crate) fn feature(&self, token: usize, semantics: &Semantics) -> usize {
        match semantics.feature {
            Feature::Next if !(token + 1).is_multiple_of(self.batch.tokens) => token + 1,
            _ => token,
        }
    }
}
