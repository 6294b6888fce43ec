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
    /// The weight for products of few rows, if it serves many of them.
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

    /// As `forward`, with results in the dtype `out`.
    pub(super) fn forward_to(&self, x: &Tensor, out: DType) -> Result<Tensor> {
        Self::forward_all([self], x, out).map(|[y]| y)
    }

    /// Applies each of `linears` to `x`. Streamed products with few rows share one kernel call,
    /// which gives the bits of single ones.
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
            ops::products_of_few_rows(
                x,
                streamed.map(|streamed| streamed.expect("each has one")),
                out,
            )?
            .into()
        } else {
            let product = |linear: &Self| ops::product_of_rows(x, &linear.transposed, out);
            linears
                .into_iter()
                .map(product)
                .collect::<candle_core::Result<_>>()?
        };
        let finish = |(linear, mut y): (&Self, Tensor)| -> Result<Tensor> {
            if let Some(bias) = &linear.bias {
                y = ops::add_bias(&y, bias)?;
            }
            if let Some(adapter) = &linear.adapter {
                y = adapter.add_to(&y, x)?;
            }
            Ok(y)
        };
        let all = linears
            .into_iter()
            .zip(products)
            .map(finish)
            .collect::<Result<Vec<_>>>()?;
        Ok(all.try_into().expect("as many products as linears"))
    }

    /// One matrix of several, which become its parts; `all` as for `stacked`. Biases are joined if
    /// all have one, as in each family.
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

    /// As `forward_all`, by the `joined` matrix if there is one; the results are then parts of its
    /// columns.
    pub(super) fn forward_joined<const COUNT: usize>(
        linears: [&Self; COUNT],
        joined: Option<&Self>,
        x: &Tensor,
    ) -> Result<[Tensor; COUNT]> {
        let Some(joined) = joined else {
            return Self::forward_all(linears, x, x.dtype());
        };
        let (all, mut first) = (joined.forward(x)?, 0);
        let part = |linear: &Self| {
            let outputs = linear.weight.dim(0)?;
            first += outputs;
            all.narrow(D::Minus1, first - outputs, outputs)
        };
        let parts = linears
            .into_iter()
            .map(part)
            .collect::<candle_core::Result<Vec<_>>>()?;
        Ok(parts.try_into().expect("as many parts as linears"))
    }
}
