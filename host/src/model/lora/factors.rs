//! The two factors beside the weight of one module, forward and backward.

use anyhow::Result;
use candle_core::Tensor;

use super::mask::DropoutMask;
use crate::model::ops;

/// `x -> s B A x`.
#[derive(Clone)]
pub(crate) struct Factors {
    /// `[r, in]`.
    a: Tensor,
    /// `[out, r]`.
    b: Tensor,
    scale: f64,
    /// In a training pass.
    pub(crate) dropout: Option<DropoutMask>,
}

/// Gradients from the factors' backward pass.
pub(crate) struct FactorGradients {
    pub(crate) a: Tensor,
    pub(crate) b: Tensor,
    /// By the input, `[N, in]`.
    pub(crate) x: Tensor,
}

impl Factors {
    pub(super) fn new(a: Tensor, b: Tensor, scale: f64) -> Self {
        Self { a, b, scale, dropout: None }
    }

    /// `y + s B A x` for `x` `[N, in]` and `y` `[N, out]`.
    pub(crate) fn add_to(&self, y: &Tensor, x: &Tensor) -> Result<Tensor> {
        let inner = self.thinned(x)?.matmul(&self.a.t()?)?.affine(self.scale, 0.0)?;
        Ok(ops::add(&inner.matmul(&self.b.t()?)?, y)?)
    }

    /// The gradients for `dy` `[N, out]`.
    pub(crate) fn backward(&self, x: &Tensor, dy: &Tensor) -> Result<FactorGradients> {
        let x = self.thinned(x)?;
        let inner = x.matmul(&self.a.t()?)?.affine(self.scale, 0.0)?;
        let d_inner = dy.matmul(&self.b)?.affine(self.scale, 0.0)?;
        Ok(FactorGradients {
            b: dy.t()?.matmul(&inner)?,
            a: d_inner.t()?.matmul(&x)?,
            x: self.thinned(&d_inner.matmul(&self.a)?)?,
        })
    }

    fn thinned(&self, x: &Tensor) -> Result<Tensor> {
        match &self.dropout {
            Some(mask) => mask.apply(x),
            None => Ok(x.clone()),
        }
    }
}
