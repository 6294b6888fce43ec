//! The weights in the dtype of the activations. On a GPU, one launch makes copies of them in bf16.

use std::collections::HashMap;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::config::Config;
use super::ops;
use super::params::Params;
use super::shapes::{FINAL_NORM, head_name};

/// Weights of a layer. Matrices that read the same input follow each other, so that together they
/// are one matrix.
const PARTS: [&str; 18] = [
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.down_proj.weight",
    "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",
    "mlp.gate_proj.bias",
    "mlp.up_proj.bias",
    "self_attn.o_proj.bias",
    "mlp.down_proj.bias",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
];

/// True if matrix products read f32 weights and round them, for activations of `dtype`.
pub(super) fn is_rounded(device: &Device, dtype: DType) -> bool {
    device.is_cpu() && dtype == DType::BF16
}

/// Weights in the dtype of the activations.
pub(super) struct Narrowed<'a> {
    weights: &'a Params,
    pub(super) dtype: DType,
    /// Copies by name, which are parts of `all`. Weights without an entry need no copy, or are
    /// converted one by one.
    copies: HashMap<String, Tensor>,
    /// The tensor of which the copies are parts.
    pub(super) all: Option<Tensor>,
}

impl<'a> Narrowed<'a> {
    pub(super) fn of(config: &Config, weights: &'a Params, dtype: DType) -> Result<Self> {
        let mut narrowed = Self {
            weights,
            dtype,
            copies: HashMap::new(),
            all: None,
        };
        if dtype != DType::BF16 {
            return Ok(narrowed);
        }
        let mut names = Vec::new();
        for layer in 0..config.num_hidden_layers {
            names.extend(PARTS.map(|part| format!("model.layers.{layer}.{part}")));
        }
        names.extend([FINAL_NORM, head_name(config)].map(str::to_owned));
        // Not every family has all parts, and a reference in bf16 has weights in bf16.
        names.retain(|name| {
            weights
                .get(name)
                .is_ok_and(|weight| weight.dtype() == DType::F32)
        });
        let stored: Vec<Tensor> = names
            .iter()
            .map(|name| narrowed.stored(name))
            .collect::<Result<_>>()?;
        if let Some((all, copies)) = ops::narrowed(&stored)? {
            narrowed.copies = names.into_iter().zip(copies).collect();
            narrowed.all = Some(all);
        }
        Ok(narrowed)
    }

    /// The weight `name` as it is stored.
    pub(super) fn stored(&self, name: &str) -> Result<Tensor> {
        Ok(self.weights.get(name)?.as_detached_tensor())
    }

    /// The weight `name`.
    pub(super) fn get(&self, name: &str) -> Result<Tensor> {
        self.get_or(name, |stored| stored.to_dtype(self.dtype))
    }

    /// The matrix `name` as products read it.
    pub(super) fn matrix(&self, name: &str) -> Result<Tensor> {
        let stored = self.stored(name)?;
        if is_rounded(stored.device(), self.dtype) {
            Ok(stored)
        } else {
            self.get(name)
        }
    }

    /// The head `name`.
    pub(super) fn head(&self, name: &str) -> Result<Tensor> {
        self.get_or(name, |stored| ops::head_for_logits(stored, self.dtype))
    }

    /// The copy of the weight `name`, or the result of `f` for the stored one.
    fn get_or(
        &self,
        name: &str,
        f: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<Tensor> {
        match self.copies.get(name) {
            Some(copy) => Ok(copy.clone()),
            None => Ok(f(&self.stored(name)?)?),
        }
    }
}

/// The tensors `parts` one below the other. If they follow each other in `all`, the result shares
/// its storage.
pub(super) fn stacked(parts: &[Tensor], all: Option<&Tensor>) -> Result<Tensor> {
    let follow = parts.windows(2).all(|pair| {
        let end = pair[0].layout().start_offset() + pair[0].elem_count();
        end == pair[1].layout().start_offset()
    });
    match (all, parts) {
        (Some(all), [first, ..]) if follow => {
            let rows = parts
                .iter()
                .map(|part| part.dim(0))
                .sum::<candle_core::Result<usize>>()?;
            let count = parts.iter().map(Tensor::elem_count).sum();
            let shape = [&[rows], &first.dims()[1..]].concat();
            let start = first.layout().start_offset();
            Ok(all.narrow(0, start, count)?.reshape(shape)?)
        }
        _ => Ok(Tensor::cat(parts, 0)?),
    }
}
