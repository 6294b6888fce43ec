//! The backward pass, layer by layer, as the transpose of each step of `decoder`.
//!
//! The passes do not use candle's autograd. It starts every gradient from a tensor of zeros, and
//! adds to it in a thread pool that spins. Tests compare the gradients with transformers and with
//! finite differences.

use std::sync::Arc;

use anyhow::{Result, bail};
use candle_core::{DType, Tensor};

use super::decoder::{Decoder, Heads, Layer, Saved};
use super::gradients::Gradients;
use super::linear::Linear;
use super::ops;
use super::packed::{Packed, Tokens};
use super::sequences::Sequences;
use super::shapes::{EMBEDDING, FINAL_NORM, HEAD};

/// Activations that a forward pass stores for the backward pass. Clones share them.
#[derive(Clone)]
pub(super) struct Tape {
    pub(super) model: Arc<Decoder>,
    pub(super) packed: Arc<Packed>,
    pub(super) tokens: Tokens,
    pub(super) layers: Vec<Stored>,
    /// The residual stream of the token before each completion token, before the final norm,
    /// `[K, D]`.
    pub(super) last: Tensor,
    /// True if the head shares its weight with the embedding.
    pub(super) tied: bool,
    /// The id whose embedding gets no gradient from its use as an input.
    pub(super) padding: Option<u32>,
}

#[derive(Clone)]
pub(super) enum Stored {
    All(Saved),
    /// The input of the layer, `[N, D]`, from which its activations are recomputed.
    Input(Tensor),
}

impl Stored {
    fn map(&self, f: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> candle_core::Result<Self> {
        Ok(match self {
            Self::All(saved) => Self::All(saved.map(f)?),
            Self::Input(x) => Self::Input(f(x)?),
        })
    }
}

/// Collects the gradients of one layer under their weights' names.
struct LayerGradients<'a> {
    layer: usize,
    /// True if the layer's own weights get no gradient.
    frozen: bool,
    sum: &'a mut Gradients,
}

impl LayerGradients<'_> {
    fn add(&mut self, part: &str, gradient: Tensor) -> Result<()> {
        self.sum
            .add(format!("model.layers.{}.{part}", self.layer), gradient)
    }

    /// Adds the gradient of a weight of the layer itself, unless the layer is frozen.
    fn add_own(&mut self, part: &str, gradient: Tensor) -> Result<()> {
        if self.frozen {
            Ok(())
        } else {
            self.add(part, gradient)
        }
    }

    /// Adds the gradients of `part`'s weight and bias, or of its adapter. Returns the gradient by
    /// `x` `[N, in]`; `dy` is `[N, out]`.
    fn linear(&mut self, part: &str, linear: &Linear, x: &Tensor, dy: &Tensor) -> Result<Tensor> {
        if !self.frozen {
            self.add(
                &format!("{part}.weight"),
                ops::product(&dy.t()?, x, linear.weight.dtype())?,
            )?;
            if linear.bias.is_some() {
                self.add(&format!("{part}.bias"), ops::sum_rows(dy)?)?;
            }
        }
        let mut dx = ops::product_of_rows(dy, &linear.weight, dy.dtype())?;
        if let Some(adapter) = &linear.adapter {
            let gradients = adapter.backward(x, dy)?;
            self.add(&format!("{part}.lora_A.weight"), gradients.a)?;
            self.add(&format!("{part}.lora_B.weight"), gradients.b)?;
            dx = ops::add(&dx, &gradients.x)?;
        }
        Ok(dx)
    }

    /// Adds the gradient of the head norm `part`. Returns the gradient by `x`, `[N, H * head_dim]`;
    /// `dy` has the same shape.
    fn head_norm(
        &mut self,
        part: &str,
        weight: &Tensor,
        x: &Tensor,
        dy: &Tensor,
        eps: f64,
    ) -> Result<Tensor> {
        let heads = |tensor: &Tensor| tensor.reshape(((), weight.dim(0)?));
        let (dx, d_weight) = ops::rms_norm_backward(&heads(x)?, weight, &heads(dy)?, eps, None)?;
        self.add_own(&format!("{part}.weight"), d_weight)?;
        Ok(dx.reshape(x.shape())?)
    }
}

impl Tape {
    /// A tape of the rows `rows` alone, whose tokens are `own` and their completion tokens
    /// `chosen`, with copies of their activations.
    pub(super) fn of(&self, rows: &[usize], own: &Sequences, chosen: &Tensor) -> Result<Self> {
        let packed = Packed::new(own, self.packed.shares);
        let places = Tensor::new(packed.places_in(&self.packed, rows), self.last.device())?;
        let own_rows = |tensor: &Tensor| tensor.contiguous()?.index_select(&places, 0);
        Ok(Self {
            model: Arc::new(self.model.of(&packed.numbered(&own.numbers))),
            tokens: packed.with_table(self.tokens.rope.table.clone(), self.last.device())?,
            packed: Arc::new(packed),
            layers: self
                .layers
                .iter()
                .map(|layer| layer.map(own_rows))
                .collect::<candle_core::Result<_>>()?,
            last: self.last.index_select(chosen, 0)?,
            tied: self.tied,
            padding: self.padding,
        })
    }

    /// Bytes of all stored tensors.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let sum = std::cell::Cell::new(0);
        let count = |tensor: &Tensor| {
            sum.set(sum.get() + tensor.elem_count() * tensor.dtype().size_in_bytes());
            Ok(tensor.clone())
        };
        self.layers.iter().for_each(|layer| _ = layer.map(count));
        [&self.tokens.ids, &self.last]
            .into_iter()
            .for_each(|tensor| _ = count(tensor));
        sum.get()
    }

    /// Adds the gradients of the trained parameters to `sum`, from the gradients by the features
    /// `[K, D]` and by the head `[V, D]`. `d_head` is `None` for a frozen head. Activations that
    /// nothing else shares are freed as soon as they have been used.
    pub(super) fn backward(
        mut self,
        d_hidden: &Tensor,
        d_head: Option<Tensor>,
        sum: &mut Gradients,
    ) -> Result<()> {
        let frozen = self.model.frozen;
        let d_features = d_hidden.to_dtype(self.last.dtype())?;
        let (d_last, d_norm) = ops::rms_norm_backward(
            &self.last,
            &self.model.final_norm,
            &d_features,
            self.model.eps,
            None,
        )?;
        if !frozen {
            sum.add(FINAL_NORM.to_owned(), d_norm)?;
        }
        // Below the lowest adapter, no parameter is trained.
        let lowest = if frozen {
            self.model
                .layers
                .iter()
                .position(Layer::has_adapter)
                .unwrap_or(usize::MAX)
        } else {
            0
        };
        // The first tokens of all completions of a prompt come after the same token, whose gradient
        // is their sum.
        let zeros = Tensor::zeros(
            (self.packed.ids.len(), d_last.dim(1)?),
            DType::F32,
            d_last.device(),
        )?;
        let mut dx =
            ops::add_rows(zeros, &self.packed.before(), &d_last, None)?.to_dtype(d_last.dtype())?;
        for (number, layer) in self.model.layers.iter().enumerate().skip(lowest).rev() {
            let saved = match self.layers.pop() {
                Some(Stored::All(saved)) => saved,
                Some(Stored::Input(x)) => layer.forward(x, &self.tokens)?.1,
                None => bail!("this forward pass kept nothing of layer {number}"),
            };
            dx = layer_backward(
                layer,
                saved,
                &self.tokens,
                &dx,
                &mut LayerGradients {
                    layer: number,
                    frozen,
                    sum,
                },
            )?;
        }
        match d_head {
            Some(d_head) => self.embedding_backward(&dx, d_head, sum),
            None => Ok(()),
        }
    }

    /// Adds the gradients of head and embedding, given the gradient by the residual stream that
    /// enters the first layer.
    fn embedding_backward(&self, dx: &Tensor, d_head: Tensor, sum: &mut Gradients) -> Result<()> {
        let embedding = &self.model.embedding;
        let start = if self.tied {
            d_head
        } else {
            let zeros = Tensor::zeros(embedding.shape(), d_head.dtype(), d_head.device())?;
            sum.add(HEAD.to_owned(), d_head)?;
            zeros
        };
        sum.add(
            EMBEDDING.to_owned(),
            ops::add_rows(start, &self.packed.ids, dx, self.padding)?,
        )
    }
}

/// The gradient by a layer's input, `[N, D]`, from the gradient by its output.
///
/// Cheap activations are recomputed. Norms and the gate's product would take a third of a layer's
/// stored bytes.
fn layer_backward(
    layer: &Layer,
    saved: Saved,
    tokens: &Tokens,
    dx: &Tensor,
    gradients: &mut LayerGradients<'_>,
) -> Result<Tensor> {
    let (
        Saved {
            x,
            unnormed,
            heads,
            mixed,
            gated,
        },
        eps,
    ) = (saved, layer.sizes.eps);
    let inner = ops::swiglu(&gated.gate, &gated.up)?;
    let d_inner = gradients.linear("mlp.down_proj", &layer.down, &inner, dx)?;
    drop(inner);
    let (d_gate, d_up) = ops::swiglu_backward(&gated.gate, &gated.up, &d_inner)?;
    let normed = ops::rms_norm(&gated.x, &layer.post_norm, eps)?;
    let d_normed = ops::add(
        &gradients.linear("mlp.gate_proj", &layer.gate, &normed, &d_gate)?,
        &gradients.linear("mlp.up_proj", &layer.up, &normed, &d_up)?,
    )?;
    let (dx, d_norm) =
        ops::rms_norm_backward(&gated.x, &layer.post_norm, &d_normed, eps, Some(dx))?;
    gradients.add_own("post_attention_layernorm.weight", d_norm)?;
    drop((gated, normed, d_inner, d_gate, d_up));

    let d_mixed = gradients.linear("self_attn.o_proj", &layer.output, &mixed, &dx)?;
    let sizes = layer.sizes.heads;
    let [queries, keys, values] =
        ops::attention_backward(heads.each(), &d_mixed, &tokens.packing, sizes)?;
    // The gradients by the outputs of the three projections, `[N, H or KV * head_dim]`, before the
    // norms of heads.
    let back = |x: &Tensor, heads| {
        tokens
            .rope
            .backward(&x.reshape((x.dim(0)?, heads, 1, ()))?)?
            .squeeze(1)
    };
    let (queries, keys) = (back(&queries, sizes.heads)?, back(&keys, sizes.kv_heads)?);
    let mut d_heads = Heads {
        queries,
        keys,
        values,
    };
    if let (Some(norms), Some(unnormed)) = (&layer.head_norms, &unnormed) {
        let Heads { queries, keys, .. } = &mut d_heads;
        *queries = gradients.head_norm(
            "self_attn.q_norm",
            &norms.queries,
            &unnormed.queries,
            queries,
            eps,
        )?;
        *keys = gradients.head_norm("self_attn.k_norm", &norms.keys, &unnormed.keys, keys, eps)?;
    }
    let normed = ops::rms_norm(&x, &layer.input_norm, eps)?;
    let d_normed = ops::add(
        &ops::add(
            &gradients.linear("self_attn.q_proj", &layer.query, &normed, &d_heads.queries)?,
            &gradients.linear("self_attn.k_proj", &layer.key, &normed, &d_heads.keys)?,
        )?,
        &gradients.linear("self_attn.v_proj", &layer.value, &normed, &d_heads.values)?,
    )?;
    let (dx, d_norm) = ops::rms_norm_backward(&x, &layer.input_norm, &d_normed, eps, Some(&dx))?;
    gradients.add_own("input_layernorm.weight", d_norm)?;
    Ok(dx)
}
