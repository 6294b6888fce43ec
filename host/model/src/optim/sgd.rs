//! SGD: a step is the gradient. With momentum, it is a sum of gradients in which older ones decay.

use anyhow::Result;
use candle_core::{Tensor, Var};

use crate::Params;
use crate::device::Dtype;
use crate::ops::fused;
use crate::ops::optimizer::Blend;
use crate::optim::moments::{Moments, WeightStep, decay_factor};

/// Constants of SGD.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SgdConfig {
    /// Factor of the previous sum of gradients at each step; 0 is plain SGD.
    pub momentum: f64,
    /// Decoupled weight decay of matrices, as in AdamW and unlike torch. Biases and norm weights do
    /// not decay.
    pub weight_decay: f64,
    /// Storage dtype of the momentum, for matrices below the last layer.
    pub moments: Dtype,
}

/// SGD over all weights of a model.
///
/// `sum = momentum sum + g`, `w = w (1 - lr decay) - lr sum`. Source: `torch.optim.SGD`, where the
/// sum after the first step also equals the first gradient. Without momentum, no sum is stored.
#[derive(Debug, Clone)]
pub struct Sgd {
    pub config: SgdConfig,
    /// The moment `momentum_buffer`; `None` without momentum.
    pub sums: Option<Moments>,
}

impl Sgd {
    /// An optimizer before its first step.
    pub fn new(params: &Params, config: SgdConfig) -> Result<Self> {
        let sums = if config.momentum == 0.0 {
            None
        } else {
            Some(Moments::zeros("momentum_buffer", params, config.moments)?)
        };
        Ok(Self { config, sums })
    }

    /// Descent direction of the previous step in the weight `name`, without weight decay, f32;
    /// `None` without momentum.
    pub fn direction(&self, name: &str) -> Result<Option<Tensor>> {
        self.sums.as_ref().map(|sums| sums.open(name)).transpose()
    }

    /// Updates one weight: in place by the fused CPU kernel, or by candle's operations on other
    /// devices.
    pub fn update(&mut self, weight: &WeightStep<'_>) -> Result<()> {
        let &WeightStep {
            name,
            var,
            scale,
            learning_rate,
            ..
        } = weight;
        let decay_factor = decay_factor(var, learning_rate, self.config.weight_decay);
        let Some(sums) = &mut self.sums else {
            return descend(
                var,
                &weight.grad,
                &Blend {
                    old: decay_factor,
                    new: -learning_rate * scale,
                },
            );
        };
        let mut sum = sums.open(name)?;
        let grow = Blend {
            old: self.config.momentum,
            new: scale,
        };
        if fused(&sum) {
            grow.update(&sum, &weight.grad)?;
        } else {
            sum = grow.of(&sum, &weight.grad)?;
        }
        descend(
            var,
            &sum,
            &Blend {
                old: decay_factor,
                new: -learning_rate,
            },
        )?;
        sums.close(name, sum, weight.number)
    }
}

/// Updates the weight `var`: `blend.old` times the weight plus `blend.new` times `direction`.
fn descend(var: &Var, direction: &Tensor, blend: &Blend) -> Result<()> {
    if fused(var) {
        return Ok(blend.update(var, direction)?);
    }
    Ok(var.set(&blend.of(&var.as_detached_tensor(), direction)?)?)
}
