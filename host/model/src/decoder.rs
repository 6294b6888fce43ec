//! The decoder of all families: one forward pass for training, log-probabilities and prompts of
//! generation. Its transpose is in `backward`.

use std::sync::Arc;

use anyhow::Result;
use candle_core::{DType, Tensor};

use super::config::{Biases, Config};
use super::linear::Linear;
use super::lora::{Adapter, Dropout, DropoutMask};
use super::narrowed::Narrowed;
use super::ops::{self, HeadSizes, Rope, Streamed};
use super::packed::Tokens;
use super::params::Params;
use super::shapes::{EMBEDDING, FINAL_NORM, head_name};

/// The weights in the form that the passes read. Tensors share storage with the policy's unless a
/// conversion is needed.
#[derive(Clone)]
pub(super) struct Decoder {
    /// Token embedding, `[V, D]`, in its stored dtype.
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Tensor,
    /// Head, `[V, D]`, f32. Products with bf16 features round it on the CPU; logits are f32.
    pub(super) head: Linear,
    pub(super) eps: f64,
    /// True if the weights are frozen, and only an adapter is trained.
    pub(super) frozen: bool,
    /// The tensor of which the layers' weights are parts, if one launch converted them.
    converted: Option<Tensor>,
}

#[derive(Clone)]
pub(super) struct Layer {
    pub(super) input_norm: Tensor,
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    /// Weights of the norms of each query head and of each key head, `[head_dim]`, in families that
    /// have them.
    pub(super) head_norms: Option<QueriesAndKeys>,
    pub(super) output: Linear,
    pub(super) post_norm: Tensor,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) sizes: Sizes,
    pub(super) joined: Option<Joined>,
}

/// Matrices that read the same input, as one: on a GPU a product of few rows takes its start and
/// little more.
#[derive(Clone)]
pub(super) struct Joined {
    /// Queries, keys and values, `[(H + 2 KV) * head_dim, D]`.
    pub(super) heads: Linear,
    /// Gate and up, `[2 * intermediate, D]`.
    pub(super) gates: Linear,
}

/// Sizes of the heads, and the epsilon of a layer's RMSNorms.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) heads: HeadSizes,
    pub(super) eps: f64,
}

impl Sizes {
    fn of(config: &Config) -> Self {
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        Self {
            heads: HeadSizes {
                heads,
                kv_heads,
                width: config.head_dim(),
            },
            eps: config.rms_norm_eps,
        }
    }
}

/// Queries, keys and values after rotation: `[N, H or KV * head_dim]`.
#[derive(Clone)]
pub(super) struct Heads {
    pub(super) queries: Tensor,
    pub(super) keys: Tensor,
    pub(super) values: Tensor,
}

impl Heads {
    pub(super) fn each(&self) -> [&Tensor; 3] {
        [&self.queries, &self.keys, &self.values]
    }
}

/// A tensor for the queries, and one for the keys.
#[derive(Clone)]
pub(super) struct QueriesAndKeys {
    pub(super) queries: Tensor,
    pub(super) keys: Tensor,
}

/// Activations that the backward pass of one layer needs.
#[derive(Clone)]
pub(super) struct Saved {
    /// Input of the layer in the residual stream, `[N, D]`.
    pub(super) x: Tensor,
    /// Queries and keys before the norms of heads, `[N, H or KV * head_dim]`, in families that have
    /// these norms.
    pub(super) unnormed: Option<QueriesAndKeys>,
    pub(super) heads: Heads,
    /// Values mixed by attention, `[N, H * head_dim]`.
    pub(super) mixed: Tensor,
    pub(super) gated: Gated,
}

/// Activations of the second half of a layer, the feed-forward part.
#[derive(Clone)]
pub(super) struct Gated {
    /// The residual stream after attention, `[N, D]`.
    pub(super) x: Tensor,
    /// Output of the gate projection, `[N, intermediate]`; the next field has the same shape.
    pub(super) gate: Tensor,
    pub(super) up: Tensor,
}

impl Saved {
    /// A copy with `f` applied to each tensor. The first axis of every tensor is that of the
    /// tokens.
    pub(super) fn map(
        &self,
        f: impl Fn(&Tensor) -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Self> {
        let Heads {
            queries,
            keys,
            values,
        } = &self.heads;
        let Gated { x, gate, up } = &self.gated;
        let unnormed =
            |QueriesAndKeys { queries, keys }: &QueriesAndKeys| -> candle_core::Result<_> {
                Ok(QueriesAndKeys {
                    queries: f(queries)?,
                    keys: f(keys)?,
                })
            };
        Ok(Self {
            x: f(&self.x)?,
            unnormed: self.unnormed.as_ref().map(unnormed).transpose()?,
            heads: Heads {
                queries: f(queries)?,
                keys: f(keys)?,
                values: f(values)?,
            },
            mixed: f(&self.mixed)?,
            gated: Gated {
                x: f(x)?,
                gate: f(gate)?,
                up: f(up)?,
            },
        })
    }
}

impl Layer {
    /// Joins matrices that read the same input. They become parts of the joined ones. Adapters have
    /// no joined form.
    pub(super) fn join(&mut self, all: Option<&Tensor>) -> Result<()> {
        if self.has_adapter() {
            return Ok(());
        }
        let Self {
            query,
            key,
            value,
            gate,
            up,
            ..
        } = self;
        let (heads, gates) = (
            Linear::join([query, key, value], all)?,
            Linear::join([gate, up], all)?,
        );
        self.joined = Some(Joined { heads, gates });
        Ok(())
    }

    fn new(
        number: usize,
        config: &Config,
        converted: &Narrowed<'_>,
        adapter: Option<&Adapter>,
    ) -> Result<Self> {
        let named = |part: &str| converted.get(&format!("model.layers.{number}.{part}"));
        let linear = |part: &str, biased: bool| {
            let module = format!("model.layers.{number}.{part}");
            let bias = biased.then(|| named(&format!("{part}.bias"))).transpose()?;
            let adapter = adapter
                .map(|adapter| adapter.factors(&module, converted.dtype))
                .transpose()?;
            Linear::new(
                converted.matrix(&format!("{module}.weight"))?,
                bias,
                adapter.flatten(),
            )
        };
        let head_norms = || -> Result<QueriesAndKeys> {
            Ok(QueriesAndKeys {
                queries: named("self_attn.q_norm.weight")?,
                keys: named("self_attn.k_norm.weight")?,
            })
        };
        let Biases { heads, output, mlp } = config.biases();
        Ok(Self {
            input_norm: named("input_layernorm.weight")?,
            query: linear("self_attn.q_proj", heads)?,
            key: linear("self_attn.k_proj", heads)?,
            value: linear("self_attn.v_proj", heads)?,
            head_norms: config.norms_heads().then(head_norms).transpose()?,
            output: linear("self_attn.o_proj", output)?,
            post_norm: named("post_attention_layernorm.weight")?,
            gate: linear("mlp.gate_proj", mlp)?,
            up: linear("mlp.up_proj", mlp)?,
            down: linear("mlp.down_proj", mlp)?,
            sizes: Sizes::of(config),
            joined: None,
        })
    }

    /// The layer's matrices, in the order of the forward pass.
    fn linears(&mut self) -> [&mut Linear; 7] {
        let Self {
            query,
            key,
            value,
            output,
            gate,
            up,
            down,
            ..
        } = self;
        [query, key, value, output, gate, up, down]
    }

    /// True if one of the layer's matrices has an adapter.
    pub(super) fn has_adapter(&self) -> bool {
        let Self {
            query,
            key,
            value,
            output,
            gate,
            up,
            down,
            ..
        } = self;
        [query, key, value, output, gate, up, down]
            .iter()
            .any(|linear| linear.adapter.is_some())
    }

    /// The residual stream before the layer, `[N, D]`, and its norm: `x`, and the output `more` of
    /// an earlier layer, if it is not in it yet.
    pub(super) fn normed(&self, x: &Tensor, more: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        match more {
            None => Ok((
                x.clone(),
                ops::rms_norm(x, &self.input_norm, self.sizes.eps)?,
            )),
            Some(more) => Ok(ops::add_rms_norm(
                more,
                x,
                &self.input_norm,
                self.sizes.eps,
            )?),
        }
    }

    /// Queries, keys and values of `normed` `[N, D]` before their rotation,
    /// `[N, H or KV * head_dim]`; and the queries and keys before their norms.
    pub(super) fn projected(
        &self,
        normed: &Tensor,
    ) -> Result<(Option<QueriesAndKeys>, [Tensor; 3])> {
        let joined = self.joined.as_ref().map(|joined| &joined.heads);
        let [queries, keys, values] =
            Linear::forward_joined([&self.query, &self.key, &self.value], joined, normed)?;
        let Some(norms) = &self.head_norms else {
            return Ok((None, [queries, keys, values]));
        };
        let normed = |x, norm| norm_heads(x, norm, self.sizes.eps);
        let of_heads = [
            normed(&queries, &norms.queries)?,
            normed(&keys, &norms.keys)?,
            values,
        ];
        Ok((Some(QueriesAndKeys { queries, keys }), of_heads))
    }

    /// The heads of `x` `[N, D]`, and the queries and keys before their norms.
    pub(super) fn heads(&self, x: &Tensor, rope: &Rope) -> Result<(Option<QueriesAndKeys>, Heads)> {
        let HeadSizes {
            heads, kv_heads, ..
        } = self.sizes.heads;
        let (unnormed, [queries, keys, values]) = self.projected(&self.normed(x, None)?.1)?;
        // Each token is a row of its own, so heads stay where they are.
        let turned = |x: &Tensor, heads| rope.apply(&x.unsqueeze(1)?, heads)?.reshape(x.shape());
        let (queries, keys) = (turned(&queries, heads)?, turned(&keys, kv_heads)?);
        Ok((
            unnormed,
            Heads {
                queries,
                keys,
                values: values.contiguous()?,
            },
        ))
    }

    /// The whole layer: returns the residual stream `[N, D]` after it, and the activations for its
    /// backward pass.
    pub(super) fn forward(&self, x: Tensor, tokens: &Tokens) -> Result<(Tensor, Saved)> {
        let (unnormed, heads) = self.heads(&x, &tokens.rope)?;
        let mixed = ops::attention(heads.each(), &tokens.packing, self.sizes.heads)?;
        let (out, gated) = self.gated(&x, &mixed)?;
        Ok((
            ops::add(&out, &gated.x)?,
            Saved {
                x,
                unnormed,
                heads,
                mixed,
                gated,
            },
        ))
    }

    /// Second half of the layer: adds the projection of `mixed` `[N, H * head_dim]` to `x`
    /// `[N, D]`. Returns the MLP's output, which is still to be added to that.
    pub(super) fn gated(&self, x: &Tensor, mixed: &Tensor) -> Result<(Tensor, Gated)> {
        let (x, normed) = ops::add_rms_norm(
            &self.output.forward(mixed)?,
            x,
            &self.post_norm,
            self.sizes.eps,
        )?;
        let joined = self.joined.as_ref().map(|joined| &joined.gates);
        let [gate, up] = Linear::forward_joined([&self.gate, &self.up], joined, &normed)?;
        let inner = ops::swiglu(&gate, &up)?;
        Ok((self.down.forward(&inner)?, Gated { x, gate, up }))
    }
}

/// Applies RMSNorm with `weight` `[head_dim]` to each head of `x` `[N, H * head_dim]`.
fn norm_heads(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let heads = x.reshape(((), weight.dim(0)?))?;
    Ok(ops::rms_norm(&heads, weight, eps)?.reshape(x.shape())?)
}

impl Decoder {
    /// The model over `weights`, with activations of `dtype`, without an autograd graph and without
    /// dropout. Later updates of the weights take effect here if theirs is the same dtype.
    pub(super) fn new(
        config: &Config,
        weights: &Params,
        adapter: Option<&Adapter>,
        dtype: DType,
    ) -> Result<Self> {
        let converted = Narrowed::of(config, weights, dtype)?;
        let layer = |number| Layer::new(number, config, &converted, adapter);
        Ok(Self {
            embedding: converted.stored(EMBEDDING)?,
            layers: (0..config.num_hidden_layers)
                .map(layer)
                .collect::<Result<_>>()?,
            final_norm: converted.get(FINAL_NORM)?,
            head: Linear::new(converted.head(head_name(config))?, None, None)?,
            eps: config.rms_norm_eps,
            frozen: adapter.is_some(),
            converted: converted.all,
        })
    }

    /// The model with `dropout` of a rate before the adapter's first factors. `rows` are the
    /// numbers of the rows in their batch, each with its number of tokens, which lie behind each
    /// other.
    pub(super) fn for_rows(
        mut self,
        dropout: Option<(Dropout, f64)>,
        rows: &Arc<[(u64, usize)]>,
    ) -> Self {
        let Some((dropout, rate)) = dropout else {
            return self;
        };
        for (number, layer) in self.layers.iter_mut().enumerate() {
            for (place, linear) in layer.linears().into_iter().enumerate() {
                if let Some(adapter) = &mut linear.adapter {
                    let module = [number as u64, place as u64];
                    adapter.dropout = Some(DropoutMask {
                        dropout,
                        rate,
                        rows: rows.clone(),
                        module,
                    });
                }
            }
        }
        self
    }

    /// The model for a subset of the batch's rows. Only the dropout masks differ.
    pub(super) fn of(&self, rows: &Arc<[(u64, usize)]>) -> Self {
        let mut model = self.clone();
        for linear in model.layers.iter_mut().flat_map(Layer::linears) {
            if let Some(mask) = linear
                .adapter
                .as_mut()
                .and_then(|adapter| adapter.dropout.as_mut())
            {
                mask.rows = rows.clone();
            }
        }
        model
    }

    /// Copies the matrices into the memory order that products with few rows read fastest.
    ///
    /// Without the copy, such products with 48 rows and D = 128 spend most of their time reordering
    /// the weights. Later updates of the weights have no effect on the copies.
    pub(super) fn pack(mut self) -> Result<Self> {
        for linear in self
            .layers
            .iter_mut()
            .flat_map(Layer::linears)
            .chain([&mut self.head])
        {
            linear.transposed = linear.transposed.contiguous()?;
        }
        Ok(self)
    }

    /// Prepares the matrices for many products with few rows, which generation with a larger model
    /// uses: f32 needs no copy of the weights, and bf16 needs one of half their size.
    pub(super) fn stream(mut self) -> Result<Self> {
        let dtype = self.final_norm.dtype();
        let on_cpu = self.head.weight.device().is_cpu();
        if on_cpu {
            let dtype = ops::for_logits(&self.final_norm)?.dtype();
            self.head.streamed = Streamed::new(&self.head.weight, dtype)?.map(Arc::new);
        }
        for linear in self.layers.iter_mut().flat_map(Layer::linears) {
            linear.streamed = Streamed::new(&linear.weight, dtype)?.map(Arc::new);
            if !on_cpu {
                linear.weight = linear.weight.to_dtype(dtype)?;
                linear.transposed = linear.weight.t()?;
            }
        }
        // There, bf16 weights are copies already, so that joined ones take no more memory.
        if !on_cpu && dtype == DType::BF16 {
            self.layers
                .iter_mut()
                .try_for_each(|layer| layer.join(self.converted.as_ref()))?;
        }
        Ok(self)
    }

    /// Embeddings of `ids` `[N]` (u32), as `[N, D]`.
    pub(super) fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(ops::to_dtype(
            &self.embedding.index_select(ids, 0)?,
            self.final_norm.dtype(),
        )?)
    }

    /// The residual stream `[N, D]` after all layers. `each` is called with the activations of each
    /// layer.
    pub(super) fn residual(
        &self,
        tokens: &Tokens,
        mut each: impl FnMut(usize, Saved) -> Result<()>,
    ) -> Result<Tensor> {
        let mut x = self.embed(&tokens.ids)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let (out, saved) = layer.forward(x, tokens)?;
            each(number, saved)?;
            x = out;
        }
        Ok(x)
    }

    /// Applies the final norm. The product of the resulting features with the head gives the
    /// logits.
    pub(super) fn features(&self, x: &Tensor) -> Result<Tensor> {
        Ok(ops::rms_norm(x, &self.final_norm, self.eps)?)
    }

    /// Logits `[N, V]`, f32, from features `[N, D]`.
    pub(super) fn logits(&self, features: &Tensor) -> Result<Tensor> {
        self.head
            .forward_to(&ops::for_logits(features)?, DType::F32)
    }
}
