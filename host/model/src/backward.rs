//! The backward pass, layer by layer, as the transpose of each step of `decoder`.
//!
//! The passes do not use candle's autograd. It starts every gradient from a tensor of zeros, and
//! adds to it in a thread pool that spins. Tests compare the gradients with transformers and with
//! finite differences.

use std::sync::Arc;

use anyhow::{Result, bail};
use candle_core::{DType, Tensor};

use super::decoder::{Decoder, Gated, Heads, Layer, QueriesAndKeys, Saved};
use super::gradients::Gradients;
use super::linear::Linear;
use super::ops::{self, Rope};
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

/// What a forward pass stores of one layer.
#[derive(Clone)]
pub(super) enum Stored {
    /// All activations that its backward pass needs.
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

    /// Adds the gradient of a norm of heads. Returns the gradient by its input `x`,
    /// `[N, H * head_dim]`; `dy` has the same shape.
    fn head_norm(&mut self, norm: &HeadNorm<'_>, x: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let HeadNorm { part, weight, eps } = *norm;
        let width = weight.dim(0)?;
        let heads = x.reshape(((), width))?;
        let d_heads = dy.reshape(((), width))?;
        let (dx, d_weight) = ops::rms_norm_backward(&heads, weight, &d_heads, eps, None)?;
        self.add_own(&format!("{part}.weight"), d_weight)?;
        Ok(dx.reshape(x.shape())?)
    }
}

/// The RMSNorm of each query head, or of each key head.
struct HeadNorm<'a> {
    /// Name of the norm in its layer.
    part: &'static str,
    /// `[head_dim]`.
    weight: &'a Tensor,
    eps: f64,
}

impl Tape {
    /// A tape with only the rows `rows`, and copies of their activations. `own` are these rows, and
    /// `chosen` are the places of their completion tokens among all of the tape.
    pub(super) fn of(&self, rows: &[usize], own: &Sequences, chosen: &Tensor) -> Result<Self> {
        let packed = Packed::new(own, self.packed.shares);
        let places = Tensor::new(packed.places_in(&self.packed, rows), self.last.device())?;
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            layers.push(layer.map(|tensor| tensor.contiguous()?.index_select(&places, 0))?);
        }
        Ok(Self {
            model: Arc::new(self.model.of(&packed.numbered(&own.numbers))),
            tokens: packed.with_table(self.tokens.rope.table.clone(), self.last.device())?,
            packed: Arc::new(packed),
            layers,
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
        };
        for layer in &self.layers {
            let _ = layer.map(|tensor| {
                count(tensor);
                Ok(tensor.clone())
            });
        }
        count(&self.tokens.ids);
        count(&self.last);
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
        // The first tokens of all completions of a prompt come after the same token, so its
        // gradient is the sum of theirs.
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

/// The gradient by a layer's input, `[N, D]`, from the gradient `dx` by its output.
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
    let Saved {
        x,
        unnormed,
        heads,
        mixed,
        gated,
    } = saved;
    let dx = mlp_backward(layer, gated, dx, gradients)?;
    let d_mixed = gradients.linear("self_attn.o_proj", &layer.output, &mixed, &dx)?;
    let d_heads = attention_backward(layer, &heads, &d_mixed, tokens)?;
    let d_heads = head_norms_backward(layer, unnormed.as_ref(), d_heads, gradients)?;
    projections_backward(layer, &x, &d_heads, &dx, gradients)
}

/// The gradient by the residual stream after attention, from the gradient `dx` by the layer's
/// output.
fn mlp_backward(
    layer: &Layer,
    gated: Gated,
    dx: &Tensor,
    gradients: &mut LayerGradients<'_>,
) -> Result<Tensor> {
    let eps = layer.sizes.eps;
    let inner = ops::swiglu(&gated.gate, &gated.up)?;
    let d_inner = gradients.linear("mlp.down_proj", &layer.down, &inner, dx)?;
    drop(inner);
    let (d_gate, d_up) = ops::swiglu_backward(&gated.gate, &gated.up, &d_inner)?;
    let normed = ops::rms_norm(&gated.x, &layer.post_norm, eps)?;
    let by_gate = gradients.linear("mlp.gate_proj", &layer.gate, &normed, &d_gate)?;
    let by_up = gradients.linear("mlp.up_proj", &layer.up, &normed, &d_up)?;
    let d_normed = ops::add(&by_gate, &by_up)?;
    let (dx, d_norm) =
        ops::rms_norm_backward(&gated.x, &layer.post_norm, &d_normed, eps, Some(dx))?;
    gradients.add_own("post_attention_layernorm.weight", d_norm)?;
    Ok(dx)
}

/// The gradients by queries, keys and values before their rotation, `[N, H or KV * head_dim]`.
fn attention_backward(
    layer: &Layer,
    heads: &Heads,
    d_mixed: &Tensor,
    tokens: &Tokens,
) -> Result<Heads> {
    let sizes = layer.sizes.heads;
    let [queries, keys, values] =
        ops::attention_backward(heads.each(), d_mixed, &tokens.packing, sizes)?;
    Ok(Heads {
        queries: rotation_backward(&queries, sizes.heads, &tokens.rope)?,
        keys: rotation_backward(&keys, sizes.kv_heads, &tokens.rope)?,
        values,
    })
}

/// The gradient by each of the `heads` heads before its rotation, `[N, heads * head_dim]`.
fn rotation_backward(d_rotated: &Tensor, heads: usize, rope: &Rope) -> candle_core::Result<Tensor> {
    let rows = d_rotated.dim(0)?;
    rope.backward(&d_rotated.reshape((rows, heads, 1, ()))?)?
        .squeeze(1)
}

/// The gradients by the outputs of the three projections, from those after the norms of heads. Only
/// some families have these norms.
fn head_norms_backward(
    layer: &Layer,
    unnormed: Option<&QueriesAndKeys>,
    d_heads: Heads,
    gradients: &mut LayerGradients<'_>,
) -> Result<Heads> {
    let (Some(norms), Some(unnormed)) = (&layer.head_norms, unnormed) else {
        return Ok(d_heads);
    };
    let queries = HeadNorm {
        part: "self_attn.q_norm",
        weight: &norms.queries,
        eps: layer.sizes.eps,
    };
    let keys = HeadNorm {
        part: "self_attn.k_norm",
        weight: &norms.keys,
        eps: layer.sizes.eps,
    };
    Ok(Heads {
        queries: gradients.head_norm(&queries, &unnormed.queries, &d_heads.queries)?,
        keys: gradients.head_norm(&keys, &unnormed.keys, &d_heads.keys)?,
        values: d_heads.values,
    })
}

/// The gradient by the layer's input `x`, from the gradients by the outputs of the projections to
/// queries, keys and values. `dx` is the gradient by the residual stream after attention.
fn projections_backward(
    layer: &Layer,
    x: &Tensor,
    d_heads: &Heads,
    dx: &Tensor,
    gradients: &mut LayerGradients<'_>,
) -> Result<Tensor> {
    let eps = layer.sizes.eps;
    let normed = ops::rms_norm(x, &layer.input_norm, eps)?;
    let by_queries =
        gradients.linear("self_attn.q_proj", &layer.query, &normed, &d_heads.queries)?;
    let by_keys = gradients.linear("self_attn.k_proj", &layer.key, &normed, &d_heads.keys)?;
    let by_both = ops::add(&by_queries, &by_keys)?;
    let by_values = gradients.linear("self_attn.v_proj", &layer.value, &normed, &d_heads.values)?;
    let d_normed = ops::add(&by_both, &by_values)?;
    let (dx, d_norm) = ops::rms_norm_backward(x, &layer.input_norm, &d_normed, eps, Some(dx))?;
    gradients.add_own("input_layernorm.weight", d_norm)?;
    Ok(dx)
}
