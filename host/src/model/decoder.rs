//! The decoder of all families: one forward pass for training, log-probabilities and prompts of generation. Its transpose is in `backward`.

use std::sync::Arc;

use anyhow::Result;
use candle_core::{D, DType, Tensor};

use super::attention::{Heads, Sizes, attend};
use super::config::{Biases, Config};
use super::joined::Joined;
use super::lora::{DropoutMask, Factors};
use super::ops::{self, Rope, RopeTable};
use super::policy::Policy;
use super::shapes::{EMBEDDING, FINAL_NORM, head_name};

/// The weights in the form that the passes read. Tensors share storage with the policy's unless a conversion is needed.
#[derive(Clone)]
pub(super) struct Decoder {
    /// Token embedding, `[V, D]`, in its stored dtype.
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Tensor,
    /// Head, `[V, D]`, f32, because logits are f32.
    pub(super) head: Linear,
    pub(super) eps: f64,
    /// True if the weights are frozen, and only an adapter is trained.
    pub(super) frozen: bool,
}

#[derive(Clone)]
pub(super) struct Layer {
    pub(super) input_norm: Tensor,
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    /// Weights of the norms of each query head and of each key head, `[head_dim]`, in families that have them.
    pub(super) head_norms: Option<QueriesAndKeys>,
    pub(super) output: Linear,
    pub(super) post_norm: Tensor,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) sizes: Sizes,
    pub(super) joined: Option<Joined>,
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
    /// Input of the layer in the residual stream, `[B, S, D]`.
    pub(super) x: Tensor,
    /// Queries and keys before the norms of heads, `[B, S, H or KV * head_dim]`, in families that have these norms.
    pub(super) unnormed: Option<QueriesAndKeys>,
    pub(super) heads: Heads,
    /// Attention probabilities `[B, H, S, S]`; only short sequences store them.
    pub(super) probs: Option<Tensor>,
    /// Values mixed by the probabilities, `[B, S, H * head_dim]`.
    pub(super) mixed: Tensor,
    pub(super) gated: Gated,
}

/// Activations of the second half of a layer, the feed-forward part.
#[derive(Clone)]
pub(super) struct Gated {
    /// The residual stream after attention, `[B, S, D]`.
    pub(super) x: Tensor,
    /// Output of the gate projection, `[B, S, intermediate]`; the next field has the same shape.
    pub(super) gate: Tensor,
    pub(super) up: Tensor,
}

impl Saved {
    /// A copy with `f` applied to each tensor. The first axis of every tensor is the batch.
    pub(super) fn map(&self, f: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> candle_core::Result<Self> {
        let Heads { queries, keys, values } = &self.heads;
        let Gated { x, gate, up } = &self.gated;
        let unnormed = |QueriesAndKeys { queries, keys }: &QueriesAndKeys| -> candle_core::Result<_> {
            Ok(QueriesAndKeys { queries: f(queries)?, keys: f(keys)? })
        };
        Ok(Self {
            x: f(&self.x)?,
            unnormed: self.unnormed.as_ref().map(unnormed).transpose()?,
            heads: Heads { queries: f(queries)?, keys: f(keys)?, values: f(values)? },
            probs: self.probs.as_ref().map(&f).transpose()?,
            mixed: f(&self.mixed)?,
            gated: Gated { x: f(x)?, gate: f(gate)?, up: f(up)? },
        })
    }
}

fn stored(policy: &Policy, name: &str) -> Result<Tensor> {
    Ok(policy.weights().get(name)?.as_detached_tensor())
}

/// A weight in the dtype of the activations.
fn converted(policy: &Policy, name: &str) -> Result<Tensor> {
    Ok(stored(policy, name)?.to_dtype(policy.dtype())?)
}

/// `x W^T + b` with `W` `[out, in]`, plus the adapter's output if there is one.
#[derive(Clone)]
pub(super) struct Linear {
    pub(super) weight: Tensor,
    /// The weight as `[in, out]`: a view, or a contiguous copy.
    pub(super) transposed: Tensor,
    /// True if products with a few rows read the weight without a copy.
    streams: bool,
    pub(super) bias: Option<Tensor>,
    pub(super) adapter: Option<Factors>,
}

impl Linear {
    pub(super) fn new(weight: Tensor, bias: Option<Tensor>, adapter: Option<Factors>) -> Result<Self> {
        Ok(Self { transposed: weight.t()?, weight, streams: false, bias, adapter })
    }

    /// Maps `[.., in]` to `[.., out]` by one matrix product over all rows.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Self::forward_all([self], x).map(|[y]| y)
    }

    /// Applies each of `linears` to `x`. Streamed products with few rows share one kernel call.
    pub(super) fn forward_all<const COUNT: usize>(linears: [&Self; COUNT], x: &Tensor) -> Result<[Tensor; COUNT]> {
        let inputs = x.dim(D::Minus1)?;
        let rows = x.elem_count() / inputs;
        let flat = x.reshape((rows, inputs))?;
        let streams = linears.iter().all(|linear| linear.streams) && ops::are_few_rows(&flat, rows);
        let products: Vec<Tensor> = if streams {
            ops::products_of_few_rows(&flat, linears.map(|linear| &linear.weight))?.into()
        } else {
            let product = |linear: &Self| ops::product(&flat, &linear.transposed, flat.dtype());
            linears.into_iter().map(product).collect::<candle_core::Result<_>>()?
        };
        let mut shape = x.dims().to_vec();
        let finish = |(linear, mut y): (&Self, Tensor)| -> Result<Tensor> {
            if let Some(bias) = &linear.bias {
                y = ops::add_bias(&y, bias)?;
            }
            if let Some(adapter) = &linear.adapter {
                y = adapter.add_to(&y, &flat)?;
            }
            *shape.last_mut().expect("a tensor with rows") = y.dim(1)?;
            Ok(y.reshape(shape.as_slice())?)
        };
        let all = linears.into_iter().zip(products).map(finish).collect::<Result<Vec<_>>>()?;
        Ok(all.try_into().expect("as many products as linears"))
    }
}

impl Layer {
    fn new(number: usize, policy: &Policy) -> Result<Self> {
        let config = policy.config();
        let named = |part: &str| converted(policy, &format!("model.layers.{number}.{part}"));
        let linear = |part: &str, biased: bool| {
            let module = format!("model.layers.{number}.{part}");
            // On the CPU, `ops::product` rounds the stored weight while it reads it.
            let read = if policy.is_rounded() { stored } else { converted };
            let bias = biased.then(|| named(&format!("{part}.bias"))).transpose()?;
            let adapter = policy.adapter().map(|adapter| adapter.factors(&module, policy.dtype())).transpose()?;
            Linear::new(read(policy, &format!("{module}.weight"))?, bias, adapter.flatten())
        };
        let head_norms = || -> Result<QueriesAndKeys> {
            Ok(QueriesAndKeys { queries: named("self_attn.q_norm.weight")?, keys: named("self_attn.k_norm.weight")? })
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
        let Self { query, key, value, output, gate, up, down, .. } = self;
        [query, key, value, output, gate, up, down]
    }

    /// True if one of the layer's matrices has an adapter.
    pub(super) fn has_adapter(&self) -> bool {
        let Self { query, key, value, output, gate, up, down, .. } = self;
        [query, key, value, output, gate, up, down].iter().any(|linear| linear.adapter.is_some())
    }

    /// Queries, keys and values of `x` `[B, S, D]` before their rotation, `[B, S, H or KV * head_dim]`; and the queries and keys before
    /// their norms.
    pub(super) fn projected(&self, x: &Tensor) -> Result<(Option<QueriesAndKeys>, [Tensor; 3])> {
        let normed = ops::rms_norm(x, &self.input_norm, self.sizes.eps)?;
        let joined = self.joined.as_ref().map(|joined| &joined.heads);
        let [queries, keys, values] = Linear::forward_joined([&self.query, &self.key, &self.value], joined, &normed)?;
        let Some(norms) = &self.head_norms else { return Ok((None, [queries, keys, values])) };
        let normed = |x, norm| norm_heads(x, norm, self.sizes.eps);
        let of_heads = [normed(&queries, &norms.queries)?, normed(&keys, &norms.keys)?, values];
        Ok((Some(QueriesAndKeys { queries, keys }), of_heads))
    }

    /// The heads of `x` `[B, S, D]`, and the queries and keys before their norms.
    pub(super) fn heads(&self, x: &Tensor, rope: &Rope) -> Result<(Option<QueriesAndKeys>, Heads)> {
        let Sizes { heads, kv_heads, .. } = self.sizes;
        let (unnormed, [queries, keys, values]) = self.projected(x)?;
        let heads = Heads {
            queries: rope.apply(&queries, heads)?,
            keys: rope.apply(&keys, kv_heads)?,
            values: ops::heads_first(&values, kv_heads)?,
        };
        Ok((unnormed, heads))
    }

    /// The whole layer: returns the residual stream `[B, S, D]` after it, and the activations for its backward pass.
    pub(super) fn forward(&self, x: Tensor, rope: &Rope) -> Result<(Tensor, Saved)> {
        let (unnormed, heads) = self.heads(&x, rope)?;
        let (probs, mixed) = attend(self.sizes, &heads, &rope.starts)?;
        let (out, gated) = self.gated(&x, &mixed)?;
        Ok((out, Saved { x, unnormed, heads, probs, mixed, gated }))
    }

    /// Second half of the layer: adds the projection of `mixed` `[B, S, H * head_dim]`, then the MLP's output, to `x` `[B, S, D]`.
    pub(super) fn gated(&self, x: &Tensor, mixed: &Tensor) -> Result<(Tensor, Gated)> {
        let (x, normed) = ops::add_rms_norm(&self.output.forward(mixed)?, x, &self.post_norm, self.sizes.eps)?;
        let joined = self.joined.as_ref().map(|joined| &joined.gates);
        let [gate, up] = Linear::forward_joined([&self.gate, &self.up], joined, &normed)?;
        let inner = ops::swiglu(&gate, &up)?;
        let out = ops::add(&self.down.forward(&inner)?, &x)?;
        Ok((out, Gated { x, gate, up }))
    }
}

/// Applies RMSNorm with `weight` `[head_dim]` to each head of `x` `[B, S, H * head_dim]`.
fn norm_heads(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let heads = x.reshape(((), weight.dim(0)?))?;
    Ok(ops::rms_norm(&heads, weight, eps)?.reshape(x.shape())?)
}

impl Decoder {
    /// The model over the policy's weights, without an autograd graph and without dropout. Later updates of the weights take effect
    /// here if the policy's dtype is the weights' dtype.
    pub(super) fn new(policy: &Policy) -> Result<Self> {
        let config = policy.config();
        Ok(Self {
            embedding: stored(policy, EMBEDDING)?,
            layers: (0..config.num_hidden_layers).map(|i| Layer::new(i, policy)).collect::<Result<_>>()?,
            final_norm: converted(policy, FINAL_NORM)?,
            head: Linear::new(stored(policy, head_name(config))?.to_dtype(DType::F32)?, None, None)?,
            eps: config.rms_norm_eps,
            frozen: policy.adapter().is_some(),
        })
    }

    /// The model with the policy's dropout before the adapter's first factors; `rows` are the numbers of the rows in their batch.
    pub(super) fn for_rows(policy: &Policy, rows: &[u64]) -> Result<Self> {
        let mut model = Self::new(policy)?;
        let rate = policy.adapter().map_or(0.0, |adapter| adapter.config().dropout);
        let Some(dropout) = policy.dropout.filter(|_| rate > 0.0) else { return Ok(model) };
        let rows: Arc<[u64]> = rows.into();
        for (number, layer) in model.layers.iter_mut().enumerate() {
            for (place, linear) in layer.linears().into_iter().enumerate() {
                if let Some(adapter) = &mut linear.adapter {
                    let module = [number as u64, place as u64];
                    adapter.dropout = Some(DropoutMask { dropout, rate, rows: rows.clone(), module });
                }
            }
        }
        Ok(model)
    }

    /// The model for a subset of the batch's rows. Only the dropout masks differ.
    pub(super) fn of(&self, rows: &[u32]) -> Self {
        let mut model = self.clone();
        for linear in model.layers.iter_mut().flat_map(Layer::linears) {
            if let Some(mask) = linear.adapter.as_mut().and_then(|adapter| adapter.dropout.as_mut()) {
                mask.rows = rows.iter().map(|&row| mask.rows[row as usize]).collect();
            }
        }
        model
    }

    /// Copies the matrices into the memory order that products with few rows read fastest.
    ///
    /// Without the copy, such products with 48 rows and D = 128 spend most of their time reordering the weights. Later
    /// updates of the weights have no effect on the copies.
    pub(super) fn pack(mut self) -> Result<Self> {
        for linear in self.layers.iter_mut().flat_map(Layer::linears).chain([&mut self.head]) {
            linear.transposed = linear.transposed.contiguous()?;
        }
        Ok(self)
    }

    /// Products with few rows read the matrices without a copy. Generation with a larger model uses this: f32 needs no copy of the weights,
    /// and bf16 needs one of half their size.
    pub(super) fn stream(mut self) -> Result<Self> {
        let dtype = self.final_norm.dtype();
        for linear in self.layers.iter_mut().flat_map(Layer::linears) {
            linear.weight = ops::to_dtype(&linear.weight, dtype)?;
            linear.transposed = linear.weight.t()?;
            linear.streams = true;
        }
        self.head.streams = true;
        // There, bf16 weights are copies already, so that joined ones take no more memory.
        if self.head.weight.device().is_cuda() && dtype == DType::BF16 {
            self.layers.iter_mut().try_for_each(Layer::join)?;
        }
        Ok(self)
    }

    /// Embeddings of `ids` `[B, S]` (u32), as `[B, S, D]`.
    pub(super) fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let (rows, tokens) = ids.dims2()?;
        let width = self.embedding.dim(1)?;
        let rows_of_ids = self.embedding.index_select(&ids.flatten_all()?, 0)?.reshape((rows, tokens, width))?;
        Ok(ops::to_dtype(&rows_of_ids, self.final_norm.dtype())?)
    }

    /// The residual stream `[B, S, D]` after all layers. `each` is called with the activations of each layer.
    pub(super) fn residual(
        &self,
        ids: &Tensor,
        rope: &Rope,
        mut each: impl FnMut(usize, Saved) -> Result<()>,
    ) -> Result<Tensor> {
        let mut x = self.embed(ids)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let (out, saved) = layer.forward(x, rope)?;
            each(number, saved)?;
            x = out;
        }
        Ok(x)
    }

    /// Applies the final norm. The product of the resulting features with the head gives the logits.
    pub(super) fn features(&self, x: &Tensor) -> Result<Tensor> {
        Ok(ops::rms_norm(x, &self.final_norm, self.eps)?)
    }

    /// Logits `[N, V]`, f32, from features `[N, D]`.
    pub(super) fn logits(&self, features: &Tensor) -> Result<Tensor> {
        self.head.forward(&features.to_dtype(DType::F32)?)
    }
}

/// The rotation for rows whose first tokens are at `starts` `[B]`, up to index `tokens - 1`.
pub(super) fn rope(config: &Config, starts: &[usize], tokens: usize) -> Rope {
    let table = Arc::new(RopeTable::new(tokens, &config.rotary.frequencies(config.head_dim())));
    Rope::new(table, starts, 0)
}
