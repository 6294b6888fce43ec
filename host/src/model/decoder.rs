//! The decoder of all families: one forward pass for training, log-probabilities and the prompts of generation; `backward` undoes it.

use std::sync::Arc;

use anyhow::Result;
use candle_core::{D, DType, Tensor};

use super::attention::{Heads, Sizes, attend};
use super::config::{Biases, Config};
use super::lora::{Dropout, DropoutMask, Factors};
use super::ops::{self, Rope, RopeTable};
use super::params::{EMBEDDING, FINAL_NORM, head_name};
use super::policy::Policy;

/// The weights as the passes read them: tensors that share storage with the policy's where these need not be converted.
#[derive(Clone)]
pub(super) struct Decoder {
    /// `[V, D]`, as it is stored.
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Tensor,
    /// `[V, D]`, f32: logits are.
    pub(super) head: Tensor,
    /// The head as `[D, V]`: a view, or a copy of its own.
    head_transposed: Tensor,
    /// True if products of the head with a few rows read it as it is.
    streams_head: bool,
    pub(super) eps: f64,
    /// True if the weights stay as they are, and only what is beside them is trained.
    pub(super) frozen: bool,
}

/// One decoder layer.
#[derive(Clone)]
pub(super) struct Layer {
    pub(super) input_norm: Tensor,
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    /// In families that norm queries and keys.
    pub(super) head_norms: Option<HeadNorms>,
    pub(super) output: Linear,
    pub(super) post_norm: Tensor,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) sizes: Sizes,
}

/// Weights of the norms of each query head and of each key head, `[head_dim]`.
#[derive(Clone)]
pub(super) struct HeadNorms {
    pub(super) queries: Tensor,
    pub(super) keys: Tensor,
}

/// Queries and keys as projected, `[B, S, H or KV * head_dim]`.
#[derive(Clone)]
pub(super) struct Unnormed {
    pub(super) queries: Tensor,
    pub(super) keys: Tensor,
}

/// Activations that the backward pass of one layer needs.
#[derive(Clone)]
pub(super) struct Saved {
    /// The residual stream that goes in, `[B, S, D]`.
    pub(super) x: Tensor,
    /// Before the norms of heads, where there are any.
    pub(super) unnormed: Option<Unnormed>,
    pub(super) heads: Heads,
    /// Attention probabilities `[B, H, S, S]`, of short sequences.
    pub(super) probs: Option<Tensor>,
    /// Values mixed by the probabilities, `[B, S, H * head_dim]`.
    pub(super) mixed: Tensor,
    pub(super) gated: Gated,
}

/// The second half of a layer.
#[derive(Clone)]
pub(super) struct Gated {
    /// The residual stream after attention, `[B, S, D]`.
    pub(super) x: Tensor,
    /// `[B, S, intermediate]`, like the next one.
    pub(super) gate: Tensor,
    pub(super) up: Tensor,
}

impl Saved {
    /// A copy with `f` applied to each tensor; all of them have the rows of the batch first.
    pub(super) fn map(&self, f: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> candle_core::Result<Self> {
        let Heads { queries, keys, values } = &self.heads;
        let Gated { x, gate, up } = &self.gated;
        let unnormed = |Unnormed { queries, keys }: &Unnormed| -> candle_core::Result<_> {
            Ok(Unnormed { queries: f(queries)?, keys: f(keys)? })
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

/// A trained weight and what activations are computed in.
struct Weight {
    stored: Tensor,
    dtype: DType,
}

impl Weight {
    fn of(policy: &Policy, name: &str) -> Result<Self> {
        Ok(Self { stored: policy.weights().get(name)?.as_detached_tensor(), dtype: policy.dtype() })
    }

    /// In the dtype of the activations.
    fn converted(&self) -> Result<Tensor> {
        Ok(self.stored.to_dtype(self.dtype)?)
    }

    /// For [`ops::product`], which on the CPU converts what it reads.
    fn read_by_products(&self) -> Result<Tensor> {
        if self.stored.device().is_cpu() && self.dtype == DType::BF16 {
            Ok(self.stored.clone())
        } else {
            self.converted()
        }
    }
}

/// `x W^T + b`, with `W` `[out, in]`, and what an adapter adds.
#[derive(Clone)]
pub(super) struct Linear {
    pub(super) weight: Tensor,
    /// The weight as `[in, out]`: a view, or a copy of its own.
    transposed: Tensor,
    /// True if products with a few rows read the weight as it is.
    streams: bool,
    pub(super) bias: Option<Tensor>,
    pub(super) adapter: Option<Factors>,
}

impl Linear {
    fn new(weight: Tensor, bias: Option<Tensor>, adapter: Option<Factors>) -> Result<Self> {
        Ok(Self { transposed: weight.t()?, weight, streams: false, bias, adapter })
    }

    /// Maps `[.., in]` to `[.., out]` by one matrix product over all rows.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Self::forward_all([self], x).map(|[y]| y)
    }

    /// Each of them on `x`, side by side.
    fn forward_all<const COUNT: usize>(linears: [&Self; COUNT], x: &Tensor) -> Result<[Tensor; COUNT]> {
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
        let weight = |part: &str| Weight::of(policy, &format!("model.layers.{number}.{part}"));
        let named = |part: &str| weight(part)?.converted();
        let linear = |part: &str, biased: bool| {
            let bias = biased.then(|| named(&format!("{part}.bias"))).transpose()?;
            let module = format!("model.layers.{number}.{part}");
            let adapter = policy.adapter().map(|adapter| adapter.factors(&module, policy.dtype())).transpose()?;
            Linear::new(weight(&format!("{part}.weight"))?.read_by_products()?, bias, adapter.flatten())
        };
        let head_norms = || -> Result<HeadNorms> {
            Ok(HeadNorms { queries: named("self_attn.q_norm.weight")?, keys: named("self_attn.k_norm.weight")? })
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
        })
    }

    /// Its matrices, in the order of the forward pass.
    fn linears(&mut self) -> [&mut Linear; 7] {
        let Self { query, key, value, output, gate, up, down, .. } = self;
        [query, key, value, output, gate, up, down]
    }

    /// True if something beside its matrices is trained.
    pub(super) fn has_adapter(&self) -> bool {
        let Self { query, key, value, output, gate, up, down, .. } = self;
        [query, key, value, output, gate, up, down].iter().any(|linear| linear.adapter.is_some())
    }

    /// The heads of `x` `[B, S, D]`, with what they were before their norms.
    pub(super) fn heads(&self, x: &Tensor, rope: &Rope) -> Result<(Option<Unnormed>, Heads)> {
        let Sizes { heads, kv_heads, head_dim, eps } = self.sizes;
        let (rows, tokens, _) = x.dims3()?;
        let normed = ops::rms_norm(x, &self.input_norm, eps)?;
        let [queries, keys, values] = Linear::forward_all([&self.query, &self.key, &self.value], &normed)?;
        let values = values.reshape((rows, tokens, kv_heads, head_dim))?;
        let (queries, keys, unnormed) = match &self.head_norms {
            None => (queries, keys, None),
            Some(norms) => (
                norm_heads(&queries, &norms.queries, eps)?,
                norm_heads(&keys, &norms.keys, eps)?,
                Some(Unnormed { queries, keys }),
            ),
        };
        let heads = Heads {
            queries: rope.apply(&queries, heads)?,
            keys: rope.apply(&keys, kv_heads)?,
            values: values.transpose(1, 2)?.contiguous()?,
        };
        Ok((unnormed, heads))
    }

    /// The whole layer: the residual stream `[B, S, D]` after it, and what its backward pass needs.
    pub(super) fn forward(&self, x: Tensor, rope: &Rope) -> Result<(Tensor, Saved)> {
        let (unnormed, heads) = self.heads(&x, rope)?;
        let (probs, mixed) = attend(self.sizes, &heads, &rope.starts)?;
        let (out, gated) = self.gated(&x, &mixed)?;
        Ok((out, Saved { x, unnormed, heads, probs, mixed, gated }))
    }

    /// The rest of the layer: `mixed` `[B, S, H * head_dim]` into the residual stream `x` `[B, S, D]`, then the gate.
    pub(super) fn gated(&self, x: &Tensor, mixed: &Tensor) -> Result<(Tensor, Gated)> {
        let x = ops::add(&self.output.forward(mixed)?, x)?;
        let normed = ops::rms_norm(&x, &self.post_norm, self.sizes.eps)?;
        let [gate, up] = Linear::forward_all([&self.gate, &self.up], &normed)?;
        let inner = ops::swiglu(&gate, &up)?;
        let out = ops::add(&self.down.forward(&inner)?, &x)?;
        Ok((out, Gated { x, gate, up }))
    }
}

/// `x` `[B, S, H * head_dim]` with each head normed by `weight` `[head_dim]`.
fn norm_heads(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let heads = x.reshape(((), weight.dim(0)?))?;
    Ok(ops::rms_norm(&heads, weight, eps)?.reshape(x.shape())?)
}

impl Decoder {
    /// The model over the weights' storage, without an autograd graph and without dropout; later updates of the weights are seen where
    /// the policy's dtype is theirs.
    pub(super) fn new(policy: &Policy) -> Result<Self> {
        let config = policy.config();
        let head = Weight::of(policy, head_name(config))?.stored.to_dtype(DType::F32)?;
        Ok(Self {
            embedding: Weight::of(policy, EMBEDDING)?.stored,
            layers: (0..config.num_hidden_layers).map(|i| Layer::new(i, policy)).collect::<Result<_>>()?,
            final_norm: Weight::of(policy, FINAL_NORM)?.converted()?,
            head_transposed: head.t()?,
            streams_head: false,
            head,
            eps: config.rms_norm_eps,
            frozen: policy.adapter().is_some(),
        })
    }

    /// The model with the policy's dropout, for the rows of the batch with these numbers.
    pub(super) fn for_rows(policy: &Policy, rows: &[u64]) -> Result<Self> {
        let model = Self::new(policy)?;
        let rate = policy.adapter().map_or(0.0, |adapter| adapter.config().dropout);
        Ok(match policy.dropout() {
            Some(dropout) if rate > 0.0 => model.with_dropout(dropout, rate, rows),
            _ => model,
        })
    }

    /// The model with dropout at `rate` before the adapter's factors, for the rows of the batch with these numbers.
    fn with_dropout(mut self, dropout: Dropout, rate: f64, rows: &[u64]) -> Self {
        let rows: Arc<[u64]> = rows.into();
        for (number, layer) in self.layers.iter_mut().enumerate() {
            for (place, linear) in layer.linears().into_iter().enumerate() {
                if let Some(adapter) = &mut linear.adapter {
                    let module = [number as u64, place as u64];
                    adapter.dropout = Some(DropoutMask { dropout, rate, rows: rows.clone(), module });
                }
            }
        }
        self
    }

    /// The model for some rows of the batch; only the dropout masks differ.
    pub(super) fn of(&self, rows: &[u32]) -> Self {
        let mut model = self.clone();
        for linear in model.layers.iter_mut().flat_map(Layer::linears) {
            if let Some(mask) = linear.adapter.as_mut().and_then(|adapter| adapter.dropout.as_mut()) {
                mask.rows = rows.iter().map(|&row| mask.rows[row as usize]).collect();
            }
        }
        model
    }

    /// Copies the matrices into the order that products with few rows read fastest.
    ///
    /// With 48 rows and D = 128 such products otherwise spend most of their time reordering the weights. Updates of the
    /// weights are no longer seen.
    pub(super) fn pack(mut self) -> Result<Self> {
        for layer in &mut self.layers {
            for linear in layer.linears() {
                linear.transposed = linear.transposed.contiguous()?;
            }
        }
        self.head_transposed = self.head_transposed.contiguous()?;
        Ok(self)
    }

    /// Reads the matrices as they are wherever a product has few rows: what generation of a larger model does, without a copy in f32, and in bf16
    /// with one of half the size.
    pub(super) fn stream(mut self) -> Result<Self> {
        let dtype = self.final_norm.dtype();
        for layer in &mut self.layers {
            for linear in layer.linears() {
                linear.weight = ops::to_dtype(&linear.weight, dtype)?;
                linear.transposed = linear.weight.t()?;
                linear.streams = true;
            }
        }
        self.streams_head = true;
        Ok(self)
    }

    /// Embeddings of `ids` `[B, S]` (u32), as `[B, S, D]`.
    pub(super) fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let (rows, tokens) = ids.dims2()?;
        let width = self.embedding.dim(1)?;
        let rows_of_ids = self.embedding.index_select(&ids.flatten_all()?, 0)?.reshape((rows, tokens, width))?;
        Ok(ops::to_dtype(&rows_of_ids, self.final_norm.dtype())?)
    }

    /// The residual stream `[B, S, D]` after all layers; `each` gets what each layer computed.
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

    /// The last norm: features whose product with the head gives the logits.
    pub(super) fn features(&self, x: &Tensor) -> Result<Tensor> {
        Ok(ops::rms_norm(x, &self.final_norm, self.eps)?)
    }

    /// The logits `[N, V]`, f32, of features `[N, D]`.
    pub(super) fn logits(&self, features: &Tensor) -> Result<Tensor> {
        let features = features.to_dtype(DType::F32)?;
        if self.streams_head && ops::are_few_rows(&features, features.dim(0)?) {
            let [logits] = ops::products_of_few_rows(&features, [&self.head])?;
            return Ok(logits);
        }
        Ok(features.matmul(&self.head_transposed)?)
    }
}

/// The rotation for rows that start at `starts` `[B]` and reach index `tokens - 1`.
pub(super) fn rope(config: &Config, starts: &[usize], tokens: usize) -> Rope {
    let table = Arc::new(RopeTable::new(tokens, &config.rotary.frequencies(config.head_dim())));
    Rope::new(table, starts.into(), 0)
}
