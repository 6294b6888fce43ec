//! AdamW: a step is the mean of gradients divided by the root of the mean of their squares.

use anyhow::Result;
use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::device::Dtype;
use crate::ops::adamw::{self, Trained};
use crate::ops::fused;
use crate::ops::optimizer::{Mean, MeanSquare, Update};
use crate::optim::moments::{Moments, WeightStep, decay_factor};
use crate::{Gradients, Params};

/// Constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Term added to the square root of the corrected second moment.
    pub eps: f64,
    /// Decoupled weight decay of matrices; biases and norm weights have none.
    pub weight_decay: f64,
    /// Gradients that enter the second moment.
    pub second_moment: SecondMoment,
    /// Storage dtype of both moments, for matrices below the last layer.
    pub moments: Dtype,
}

impl Default for AdamWConfig {
    /// The defaults of Hugging Face's `TrainingArguments`.
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            second_moment: SecondMoment::Kept,
            moments: Dtype::F32,
        }
    }
}

/// Gradients that enter Adam's second moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondMoment {
    /// The gradient of the accepted tokens only, as in the first moment.
    #[default]
    Kept,
    /// The squares of the gradients of accepted and of rejected tokens, `g_k² + g_r²`.
    /// `(g_k + g_r)²` would vanish where the two cancel, and the step would be unbounded.
    KeptAndRejected,
}

/// AdamW over all weights of a model.
///
/// `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `w = w (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)`. Source:
/// `torch.optim.AdamW`. With a gradient `r` of rejected tokens, `v = b2 v + (1 - b2) (g^2 + r^2)`.
#[derive(Debug, Clone)]
pub struct AdamW {
    pub config: AdamWConfig,
    /// The moments `exp_avg` and `exp_avg_sq`.
    pub moments: [Moments; 2],
}

impl AdamW {
    /// An optimizer before its first step; both moments of every weight are 0.
    pub fn new(params: &Params, config: AdamWConfig) -> Result<Self> {
        Ok(Self {
            config,
            moments: [
                Moments::zeros("exp_avg", params, config.moments)?,
                Moments::zeros("exp_avg_sq", params, config.moments)?,
            ],
        })
    }

    /// Descent direction of step `number` in the weight `name`, without weight decay:
    /// `m / (sqrt(v / (1 - b2^t)) + eps)`, f32.
    pub fn direction(&self, name: &str, number: u64) -> Result<Tensor> {
        let [exp_avg, exp_avg_sq] = &self.moments;
        let mean = exp_avg.open(name)?;
        let root_of_square = exp_avg_sq.open(name)?.sqrt()?;
        let root = (1.0 - self.config.beta2.powf(number as f64)).sqrt();
        Ok((mean / ((root_of_square / root)? + self.config.eps)?)?)
    }

    /// All weights with their gradients, for an update of all at once.
    pub fn trained<'a>(
        &'a self,
        params: &'a Params,
        grads: &'a Gradients,
        rejected: Option<&'a Gradients>,
        learning_rate: f64,
    ) -> Result<Vec<Trained<'a>>> {
        let [exp_avg, exp_avg_sq] = &self.moments;
        let mut trained = Vec::new();
        for (name, var) in params.iter() {
            trained.push(Trained {
                weight: var,
                moments: [exp_avg.get(name)?, exp_avg_sq.get(name)?],
                grad: grads.get(name)?,
                rejected: rejected.map(|rejected| rejected.get(name)).transpose()?,
                decay_factor: decay_factor(var, learning_rate, self.config.weight_decay),
            });
        }
        Ok(trained)
    }

    /// Step `number` of all weights at once, with the clipping factor `scale`.
    pub fn update_all(
        &self,
        trained: &[Trained<'_>],
        number: u64,
        scale: f64,
        learning_rate: f64,
    ) -> Result<()> {
        let Rule {
            mean,
            square,
            update,
        } = self.rule(number, scale, learning_rate);
        let step = adamw::AdamW {
            mean,
            square,
            rate: update.rate,
            root: update.root,
            eps: update.eps,
        };
        Ok(step.update(trained)?)
    }

    /// The parts of step `number`, without weight decay.
    fn rule(&self, number: u64, scale: f64, learning_rate: f64) -> Rule {
        let AdamWConfig {
            beta1, beta2, eps, ..
        } = self.config;
        let number = number as f64;
        Rule {
            mean: Mean { beta: beta1, scale },
            square: MeanSquare { beta: beta2, scale },
            update: Update {
                decay_factor: 1.0,
                rate: learning_rate / (1.0 - beta1.powf(number)),
                root: (1.0 - beta2.powf(number)).sqrt(),
                eps,
            },
        }
    }

    /// Updates one weight: in place by the fused CPU kernels, or by candle's operations on other
    /// devices.
    pub fn update(&mut self, weight: &WeightStep<'_>) -> Result<()> {
        let &WeightStep {
            name,
            var,
            scale,
            learning_rate,
            number,
            ..
        } = weight;
        let Rule {
            mean,
            square,
            mut update,
        } = self.rule(number, scale, learning_rate);
        update.decay_factor = decay_factor(var, learning_rate, self.config.weight_decay);
        let grad = &weight.grad;
        let rejected = weight.rejected.as_ref();
        let [mean_moments, square_moments] = &mut self.moments;
        let mut exp_avg = mean_moments.open(name)?;
        let mut exp_avg_sq = square_moments.open(name)?;
        if fused(var) {
            mean.update(&exp_avg, grad)?;
            square.update(&exp_avg_sq, grad, rejected)?;
            update.update(var, &exp_avg, &exp_avg_sq)?;
        } else {
            exp_avg = mean.of(&exp_avg, grad)?;
            exp_avg_sq = square.of(&exp_avg_sq, grad, rejected)?;
            var.set(&update.of(&var.as_detached_tensor(), &exp_avg, &exp_avg_sq)?)?;
        }
        mean_moments.close(name, exp_avg, weight.number)?;
        square_moments.close(name, exp_avg_sq, weight.number)
    }
}

/// The three parts of a step.
struct Rule {
    mean: Mean,
    square: MeanSquare,
    update: Update,
}
