//! The two factors beside one module's weight: forward and backward pass, and dropout before the
//! first factor.

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;
use rand::Rng;
use rayon::prelude::*;

use crate::ops;
use crate::packed::NumberedRow;

/// The map `x -> s B A x`.
#[derive(Clone)]
pub(crate) struct Factors {
    /// First factor, `[r, in]`.
    a: Tensor,
    /// Second factor, `[out, r]`.
    b: Tensor,
    scale: f64,
    /// Dropout of a training pass; `None` in any other pass.
    pub(crate) dropout: Option<DropoutMask>,
}

/// Gradients of a module's two factors, and of its input.
pub(crate) struct FactorGradients {
    pub(crate) a: Tensor,
    pub(crate) b: Tensor,
    /// Gradient by the input, `[N, in]`.
    pub(crate) x: Tensor,
}

impl Factors {
    pub(super) fn new(a: Tensor, b: Tensor, scale: f64) -> Self {
        Self {
            a,
            b,
            scale,
            dropout: None,
        }
    }

    /// Returns `y + s B A x` for `x` `[N, in]` and `y` `[N, out]`.
    pub(crate) fn add_to(&self, y: &Tensor, x: &Tensor) -> Result<Tensor> {
        let inner = self.inner(&self.thinned(x)?)?;
        Ok(ops::add(&of_rows(&inner, &self.b.t()?)?, y)?)
    }

    /// The gradients by the input and both factors; `dy` is `[N, out]`.
    pub(crate) fn backward(&self, x: &Tensor, dy: &Tensor) -> Result<FactorGradients> {
        let x = self.thinned(x)?;
        let inner = self.inner(&x)?;
        let d_inner = of_rows(dy, &self.b)?.affine(self.scale, 0.0)?;
        Ok(FactorGradients {
            b: ops::matmul(&dy.t()?, &inner)?,
            a: ops::matmul(&d_inner.t()?, &x)?,
            x: self.thinned(&of_rows(&d_inner, &self.a)?)?,
        })
    }

    /// `s A x`, `[N, r]`, from what dropout left of `x`.
    fn inner(&self, thinned: &Tensor) -> Result<Tensor> {
        Ok(of_rows(thinned, &self.a.t()?)?.affine(self.scale, 0.0)?)
    }

    /// What dropout leaves of `x` `[N, in]`.
    fn thinned(&self, x: &Tensor) -> Result<Tensor> {
        match &self.dropout {
            Some(mask) => mask.apply(x),
            None => Ok(x.clone()),
        }
    }
}

/// `a b` in the dtype of `a`, whose rows are tokens. The other tokens of a pass change no bit of a
/// token's row.
fn of_rows(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    Ok(ops::product_of_rows(a, b, a.dtype())?)
}

/// Identifies the dropout of one step. A number's position decides whether it is dropped, so all
/// passes of the step drop the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropout {
    /// The run's seed.
    pub seed: u64,
    /// Name of the random stream: `lora.dropout`, or another stream for passes without a gradient.
    pub stream: &'static str,
    /// Number of completed optimizer steps.
    pub step: u64,
}

impl Dropout {
    /// Dropout of the optimizer step that follows `step` completed steps.
    pub fn of_step(seed: u64, step: u64) -> Self {
        Self {
            seed,
            stream: "lora.dropout",
            step,
        }
    }

    /// Dropout of the log-probability pass over a rollout for several steps, after `step` completed
    /// steps.
    pub fn of_rollout(seed: u64, step: u64) -> Self {
        Self {
            seed,
            stream: "lora.dropout.rollout",
            step,
        }
    }
}

/// Dropout before one module's first factor, in one pass.
#[derive(Debug, Clone)]
pub(crate) struct DropoutMask {
    pub(crate) dropout: Dropout,
    /// Probability that a number is dropped.
    pub(crate) rate: f64,
    /// The rows of the pass, whose tokens follow each other.
    pub(crate) rows: Arc<[NumberedRow]>,
    /// Numbers of the layer and of the module in the layer.
    pub(crate) module: [u64; 2],
}

impl DropoutMask {
    /// Drops entries of `x` `[N, in]`, and multiplies the others by `1 / (1 - rate)`. Source:
    /// `torch.nn.Dropout`.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let width = x.dim(1)?;
        let mut mask = vec![0.0_f32; x.elem_count()];
        let left_out = (self.rate * 2.0_f64.powi(32)) as u32;
        let kept = (1.0 / (1.0 - self.rate)) as f32;
        let mut rows = Vec::with_capacity(self.rows.len());
        let mut rest = mask.as_mut_slice();
        for row in self.rows.iter() {
            let (own, others) = rest.split_at_mut(row.tokens * width);
            rows.push((row.number, own));
            rest = others;
        }
        rows.into_par_iter().for_each(|(number, mask)| {
            let index = [self.dropout.step, number, self.module[0], self.module[1]];
            let mut rng = host_rng::stream(self.dropout.seed, self.dropout.stream, &index);
            for value in mask {
                if rng.next_u32() >= left_out {
                    *value = kept;
                }
            }
        });
        Ok((x * Tensor::from_vec(mask, x.shape(), x.device())?.to_dtype(x.dtype())?)?)
    }
}
