//! A matrix of the model, with its bias and its adapter.

use std::sync::Arc;

use anyhow::Result;
use candle_core::{D, DType, Tensor};

use super::lora::Factors;
use super::narrowed::stacked;
use super::ops::{self, Streamed};

/// `x W^T + b` with `W` `[out, in]`, plus the adapter's output if there is one.
#[derive(Clone)]
pub(super) struct Linear {
    pub(super) weight: Tensor,
    /// The weight as `[in, out]`: a view, or a contiguous copy.
    pub(super) transposed: Tensor,
    /// The weight in the form for products of few rows, if many such products will read it.
    pub(super) streamed: Option<Arc<Streamed>>,
    pub(super) bias: Option<Tensor>,
    pub(super) adapter: Option<Factors>,
}

impl Linear {
    pub(super) fn new(
        weight: Tensor,
        bias: Option<Tensor>,
        adapter: Option<Factors>,
    ) -> Result<Self> {
        Ok(Self {
            transposed: weight.t()?,
            weight,
            streamed: None,
            bias,
            adapter,
        })
    }

    /// Maps `[N, in]` to `[N, out]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_to(x, x.dtype())
    }

    /// Computes what `forward` does, with results in the dtype `out`.
    pub(super) fn forward_to(&self, x: &Tensor, out: DType) -> Result<Tensor> {
        Self::forward_all([self], x, out).map(|[y]| y)
    }

    /// Applies each of `linears` to `x`. Streamed products with few rows share one kernel call,
    /// which gives the same bits as single calls.
    pub(super) fn forward_all<const COUNT: usize>(
        linears: [&Self; COUNT],
        x: &Tensor,
        out: DType,
    ) -> Result<[Tensor; COUNT]> {
        let rows = x.dim(0)?;
        let streamed = linears.map(|linear| {
            linear
                .streamed
                .as_deref()
                .filter(|streamed| streamed.takes(rows))
        });
        let products: Vec<Tensor> = if streamed.iter().all(Option::is_some) {
            let streamed = streamed.map(|streamed| streamed.expect("each has one"));
            ops::products_of_few_rows(x, streamed, out)?.into()
        } else {
            linears
                .iter()
                .map(|linear| ops::product_of_rows(x, &linear.transposed, out))
                .collect::<candle_core::Result<_>>()?
        };
        let mut all = Vec::with_capacity(COUNT);
        for (linear, product) in linears.into_iter().zip(products) {
            all.push(linear.finish(product, x)?);
        }
        Ok(all.try_into().expect("as many products as linears"))
    }

    /// Adds bias and adapter to the product `y` of `x` and the weight.
    fn finish(&self, mut y: Tensor, x: &Tensor) -> Result<Tensor> {
        if let Some(bias) = &self.bias {
            y = ops::add_bias(&y, bias)?;
        }
        if let Some(adapter) = &self.adapter {
            y = adapter.add_to(&y, x)?;
        }
        Ok(y)
    }

    /// Joins several matrices into one, of which they become parts. `all` is as for `stacked`.
    /// Biases are joined if all matrices have one; in each family, either all have one or none.
    pub(super) fn join<const COUNT: usize>(
        linears: [&mut Self; COUNT],
        all: Option<&Tensor>,
    ) -> Result<Self> {
        let weights: Vec<Tensor> = linears.iter().map(|linear| linear.weight.clone()).collect();
        let biases: Option<Vec<Tensor>> =
            linears.iter().map(|linear| linear.bias.clone()).collect();
        let bias = biases.map(|biases| stacked(&biases, all)).transpose()?;
        let joined = Self::new(stacked(&weights, all)?, bias, None)?;
        let mut first = 0;
        for linear in linears {
            let outputs = linear.weight.dim(0)?;
            linear.weight = joined.weight.narrow(0, first, outputs)?;
            linear.transposed = linear.weight.t()?;
            first += outputs;
        }
        Ok(joined)
    }

    /// Computes what `forward_all` does. With a `joined` matrix, one product computes all results,
    /// which are parts of its columns.
    pub(super) fn forward_joined<const COUNT: usize>(
        linears: [&Self; COUNT],
        joined: Option<&Self>,
        x: &Tensor,
    ) -> Result<[Tensor; COUNT]> {
        let Some(joined) = joined else {
            return Self::forward_all(linears, x, x.dtype());
        };
        let all = joined.forward(x)?;
        let mut first = 0;
        let mut parts = Vec::with_capacity(COUNT);
        for linear in linears {
            let outputs = linear.weight.dim(0)?;
            parts.push(all.narrow(D::Minus1, first, outputs)?);
            first += outputs;
        }
        Ok(parts.try_into().expect("as many parts as linears"))
    }
}
