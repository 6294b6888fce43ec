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
use super::packed::{NumberedRow, Tokens};
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

/// One layer: attention, then the feed-forward part.
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

/// Matrices that read the same input, joined into one. On a GPU a product of few rows takes hardly
/// longer than its launch, so one joined product costs less than several.
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
        Self {
            heads: HeadSizes {
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
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
        let unnormed = match &self.unnormed {
            Some(unnormed) => Some(QueriesAndKeys {
                queries: f(&unnormed.queries)?,
                keys: f(&unnormed.keys)?,
            }),
            None => None,
        };
        Ok(Self {
            x: f(&self.x)?,
            unnormed,
            heads: Heads {
                queries: f(&self.heads.queries)?,
                keys: f(&self.heads.keys)?,
                values: f(&self.heads.values)?,
            },
            mixed: f(&self.mixed)?,
            gated: Gated {
                x: f(&self.gated.x)?,
                gate: f(&self.gated.gate)?,
                up: f(&self.gated.up)?,
            },
        })
    }
}

/// Input of a layer.
pub(super) struct LayerInput {
    /// The residual stream, `[N, D]`.
    pub(super) x: Tensor,
    /// Its norm, `[N, D]`.
    pub(super) normed: Tensor,
}

/// Queries, keys and values before their rotation.
pub(super) struct Projected {
    /// Queries and keys before their norms, in families that have these norms.
    unnormed: Option<QueriesAndKeys>,
    /// Queries, keys and values, `[N, H or KV * head_dim]`.
    pub(super) heads: [Tensor; 3],
}

impl Layer {
    /// Joins matrices that read the same input, which become parts of the joined ones. Layers with
    /// an adapter stay as they are. `all` is the tensor of which the weights may be parts.
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
        self.joined = Some(Joined {
            heads: Linear::join([query, key, value], all)?,
            gates: Linear::join([gate, up], all)?,
        });
        Ok(())
    }

    fn new(
        number: usize,
        config: &Config,
        converted: &Narrowed<'_>,
        adapter: Option<&Adapter>,
    ) -> Result<Self> {
        let weights = LayerWeights {
            number,
            converted,
            adapter,
        };
        let head_norms = if config.norms_heads() {
            Some(QueriesAndKeys {
                queries: weights.get("self_attn.q_norm.weight")?,
                keys: weights.get("self_attn.k_norm.weight")?,
            })
        } else {
            None
        };
        let Biases { heads, output, mlp } = config.biases();
        Ok(Self {
            input_norm: weights.get("input_layernorm.weight")?,
            query: weights.linear("self_attn.q_proj", heads)?,
            key: weights.linear("self_attn.k_proj", heads)?,
            value: weights.linear("self_attn.v_proj", heads)?,
            head_norms,
            output: weights.linear("self_attn.o_proj", output)?,
            post_norm: weights.get("post_attention_layernorm.weight")?,
            gate: weights.linear("mlp.gate_proj", mlp)?,
            up: weights.linear("mlp.up_proj", mlp)?,
            down: weights.linear("mlp.down_proj", mlp)?,
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

    /// Adds `output`, what the layer below returned, to the residual stream `x` `[N, D]`, and
    /// applies the layer's first norm. Without an `output`, `x` is the whole stream.
    pub(super) fn normed(&self, x: &Tensor, output: Option<&Tensor>) -> Result<LayerInput> {
        let eps = self.sizes.eps;
        let (x, normed) = match output {
            None => (x.clone(), ops::rms_norm(x, &self.input_norm, eps)?),
            Some(output) => ops::add_rms_norm(output, x, &self.input_norm, eps)?,
        };
        Ok(LayerInput { x, normed })
    }

    /// Queries, keys and values of `normed` `[N, D]` before their rotation.
    pub(super) fn projected(&self, normed: &Tensor) -> Result<Projected> {
        let joined = self.joined.as_ref().map(|joined| &joined.heads);
        let [queries, keys, values] =
            Linear::forward_joined([&self.query, &self.key, &self.value], joined, normed)?;
        let Some(norms) = &self.head_norms else {
            return Ok(Projected {
                unnormed: None,
                heads: [queries, keys, values],
            });
        };
        let eps = self.sizes.eps;
        let heads = [
            norm_heads(&queries, &norms.queries, eps)?,
            norm_heads(&keys, &norms.keys, eps)?,
            values,
        ];
        let unnormed = Some(QueriesAndKeys { queries, keys });
        Ok(Projected { unnormed, heads })
    }

    /// The whole layer: returns the residual stream `[N, D]` after it, and the activations for its
    /// backward pass.
    pub(super) fn forward(&self, x: Tensor, tokens: &Tokens) -> Result<(Tensor, Saved)> {
        let input = self.normed(&x, None)?;
        let Projected { unnormed, heads } = self.projected(&input.normed)?;
        drop(input);
        let [queries, keys, values] = heads;
        let HeadSizes {
            heads, kv_heads, ..
        } = self.sizes.heads;
        let heads = Heads {
            queries: rotated(&queries, heads, &tokens.rope)?,
            keys: rotated(&keys, kv_heads, &tokens.rope)?,
            values: values.contiguous()?,
        };
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

/// The weights from which one layer is made.
struct LayerWeights<'a> {
    number: usize,
    converted: &'a Narrowed<'a>,
    adapter: Option<&'a Adapter>,
}

impl LayerWeights<'_> {
    /// The layer's weight `name`, such as `input_layernorm.weight`.
    fn get(&self, name: &str) -> Result<Tensor> {
        self.converted
            .get(&format!("model.layers.{}.{name}", self.number))
    }

    /// The layer's matrix `name`, such as `mlp.up_proj`, with its bias and its adapter.
    fn linear(&self, name: &str, biased: bool) -> Result<Linear> {
        let module = format!("model.layers.{}.{name}", self.number);
        let weight = self.converted.matrix(&format!("{module}.weight"))?;
        let bias = if biased {
            Some(self.converted.get(&format!("{module}.bias"))?)
        } else {
            None
        };
        let adapter = match self.adapter {
            Some(adapter) => adapter.factors(&module, self.converted.dtype)?,
            None => None,
        };
        Linear::new(weight, bias, adapter)
    }
}

/// Rotates each of the `heads` heads of `x` `[N, heads * head_dim]`. Each token is a row of its
/// own, so heads stay where they are.
fn rotated(x: &Tensor, heads: usize, rope: &Rope) -> candle_core::Result<Tensor> {
    rope.apply(&x.unsqueeze(1)?, heads)?.reshape(x.shape())
}

/// Applies RMSNorm with `weight` `[head_dim]` to each head of `x` `[N, H * head_dim]`.
fn norm_heads(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let heads = x.reshape(((), weight.dim(0)?))?;
    Ok(ops::rms_norm(&heads, weight, eps)?.reshape(x.shape())?)
}

impl Decoder {
    /// The model over `weights`, with activations of `dtype`, without an autograd graph and without
    /// dropout. If the weights have this dtype, their later updates take effect here too.
    pub(super) fn new(
        config: &Config,
        weights: &Params,
        adapter: Option<&Adapter>,
        dtype: DType,
    ) -> Result<Self> {
        let converted = Narrowed::of(config, weights, dtype)?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for number in 0..config.num_hidden_layers {
            layers.push(Layer::new(number, config, &converted, adapter)?);
        }
        Ok(Self {
            embedding: converted.stored(EMBEDDING)?,
            layers,
            final_norm: converted.get(FINAL_NORM)?,
            head: Linear::new(converted.head(head_name(config))?, None, None)?,
            eps: config.rms_norm_eps,
            frozen: adapter.is_some(),
            converted: converted.all,
        })
    }

    /// Applies `dropout` before the adapter's first factors; a number is dropped with probability
    /// `rate`. `rows` are the rows of the pass, whose tokens follow each other.
    pub(super) fn drop_out(&mut self, dropout: Dropout, rate: f64, rows: &Arc<[NumberedRow]>) {
        for (number, layer) in self.layers.iter_mut().enumerate() {
            for (place, linear) in layer.linears().into_iter().enumerate() {
                if let Some(adapter) = &mut linear.adapter {
                    adapter.dropout = Some(DropoutMask {
                        dropout,
                        rate,
                        rows: rows.clone(),
                        module: [number as u64, place as u64],
                    });
                }
            }
        }
    }

    /// The model for a subset of the batch's rows. Only the dropout masks differ.
    pub(super) fn of(&self, rows: &Arc<[NumberedRow]>) -> Self {
        let mut model = self.clone();
        for linear in model.layers.iter_mut().flat_map(Layer::linears) {
            if let Some(adapter) = &mut linear.adapter
                && let Some(mask) = &mut adapter.dropout
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
        // On a GPU, bf16 weights are copies already, so joined ones take no more memory.
        if !on_cpu && dtype == DType::BF16 {
            for layer in &mut self.layers {
                layer.join(self.converted.as_ref())?;
            }
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
