//! The weights in the dtype of the activations: on a GPU bf16 copies that one launch makes.

use std::collections::HashMap;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::config::Config;
use super::ops;
use super::params::Params;
use super::shapes::{FINAL_NORM, head_name};

/// Weights of a layer. Those that read the same input follow each other, so that together they are
/// one matrix.
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
    /// Copies by name, parts of `all`; none where no copy is needed, or where each is made on its
    /// own.
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
        let named = |layer: usize| PARTS.map(|part| format!("model.layers.{layer}.{part}"));
        let last = [FINAL_NORM, head_name(config)].map(str::to_owned);
        let names = (0..config.num_hidden_layers).flat_map(named).chain(last);
        let there = names.filter_map(|name| {
            weights
                .get(&name)
                .ok()
                .map(|var| (name, var.as_detached_tensor()))
        });
        // A reference in bf16 has weights in bf16.
        let there = there.filter(|(_, weight)| weight.dtype() == DType::F32);
        let (names, weights): (Vec<String>, Vec<Tensor>) = there.unzip();
        if let Some((all, copies)) = ops::narrowed(&weights)? {
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

    /// The copy of the weight `name`, or what `f` makes of the stored one.
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

/// Tensors one below the other, which share storage with `all` where they follow each other in it.
pub(super) fn stacked(parts: &[Tensor], all: Option<&Tensor>) -> Result<Tensor> {
    let starts = |part: &Tensor| part.layout().start_offset();
    let follow = parts
        .windows(2)
        .all(|pair| starts(&pair[0]) + pair[0].elem_count() == starts(&pair[1]));
    match (all, parts) {
        (Some(all), [first, ..]) if follow => {
            let rows = parts
                .iter()
                .map(|part| part.dim(0))
                .sum::<candle_core::Result<usize>>()?;
            let count = parts.iter().map(Tensor::elem_count).sum();
            let shape = [&[rows], &first.dims()[1..]].concat();
            Ok(all.narrow(0, starts(first), count)?.reshape(shape)?)
        }
        _ => Ok(Tensor::cat(parts, 0)?),
    }
}
