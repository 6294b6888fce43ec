//! The two factors beside one module's weight: forward and backward pass.

use anyhow::Result;
use candle_core::Tensor;

use super::mask::DropoutMask;
use crate::model::ops;

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

/// Gradients from the factors' backward pass.
pub(crate) struct FactorGradients {
    pub(crate) a: Tensor,
    pub(crate) b: Tensor,
    /// Gradient by the input, `[N, in]`.
    pub(crate) x: Tensor,
}

impl Factors {
    pub(super) fn new(a: Tensor, b: Tensor, scale: f64) -> Self {
        Self { a, b, scale, dropout: None }
    }

    /// Returns `y + s B A x` for `x` `[N, in]` and `y` `[N, out]`.
    pub(crate) fn add_to(&self, y: &Tensor, x: &Tensor) -> Result<Tensor> {
        let inner = self.thinned(x)?.matmul(&self.a.t()?)?.affine(self.scale, 0.0)?;
        Ok(ops::add(&inner.matmul(&self.b.t()?)?, y)?)
    }

    /// The gradients by the input and both factors; `dy` is `[N, out]`.
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
