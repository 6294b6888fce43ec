//! Matrices that read the same input, joined for generation on a GPU.

use anyhow::Result;
use candle_core::{D, Tensor};

use super::decoder::{Layer, Linear};

/// Matrices that read the same input, as one: on a GPU a product of few rows takes its start and little more.
#[derive(Clone)]
pub(super) struct Joined {
    /// Queries, keys and values, `[(H + 2 KV) * head_dim, D]`.
    pub(super) heads: Linear,
    /// Gate and up, `[2 * intermediate, D]`.
    pub(super) gates: Linear,
}

impl Layer {
    /// Joins matrices that read the same input. They become parts of the joined ones. Adapters have no joined form.
    pub(super) fn join(&mut self) -> Result<()> {
        if self.has_adapter() {
            return Ok(());
        }
        let Self { query, key, value, gate, up, .. } = self;
        let (heads, gates) = (Linear::join([query, key, value])?, Linear::join([gate, up])?);
        self.joined = Some(Joined { heads, gates });
        Ok(())
    }
}

impl Linear {
    /// One matrix of several, which become its parts. Biases are joined if all have one, as in each family.
    fn join<const COUNT: usize>(linears: [&mut Self; COUNT]) -> Result<Self> {
        let weights: Vec<Tensor> = linears.iter().map(|linear| linear.weight.clone()).collect();
        let biases: Option<Vec<Tensor>> = linears.iter().map(|linear| linear.bias.clone()).collect();
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose()?;
        let joined = Self::new(Tensor::cat(&weights, 0)?, bias, None)?;
        let mut first = 0;
        for linear in linears {
            let outputs = linear.weight.dim(0)?;
            linear.weight = joined.weight.narrow(0, first, outputs)?;
            linear.transposed = linear.weight.t()?;
            first += outputs;
        }
        Ok(joined)
    }

    /// As `forward_all`, by the `joined` matrix if there is one; the results are then parts of its columns.
    pub(super) fn forward_joined<const COUNT: usize>(
        linears: [&Self; COUNT],
        joined: Option<&Self>,
        x: &Tensor,
    ) -> Result<[Tensor; COUNT]> {
        let Some(joined) = joined else { return Self::forward_all(linears, x) };
        let (all, mut first) = (joined.forward(x)?, 0);
        let part = |linear: &Self| {
            let outputs = linear.weight.dim(0)?;
            first += outputs;
            all.narrow(D::Minus1, first - outputs, outputs)
        };
        let parts = linears.into_iter().map(part).collect::<candle_core::Result<Vec<_>>>()?;
        Ok(parts.try_into().expect("as many parts as linears"))
    }
}
