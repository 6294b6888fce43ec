//! The KV cache: keys and values of all tokens so far, in storage that is allocated once.

use std::ops::Range;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::config::Config;
use super::decoder::Heads;
use super::ops::{self, DecodeRows, Rope};

/// One pair of `[B, KV, S, head_dim]` tensors per layer; S is the longest possible row.
pub(super) struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
}

impl KvCache {
    pub(super) fn new(
        config: &Config,
        rows: usize,
        tokens: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = (rows, config.num_key_value_heads, tokens, config.head_dim());
        let layer = |_| {
            let zeros = || Tensor::zeros(shape, dtype, device);
            Ok((zeros()?, zeros()?))
        };
        Ok(Self {
            layers: (0..config.num_hidden_layers)
                .map(layer)
                .collect::<Result<_>>()?,
        })
    }

    /// Stores the keys and values of packed tokens at the beginning of all cache rows: `tokens`,
    /// `[B, P]` u32, names that of each place; `u32::MAX` is none.
    pub(super) fn fill_all(&self, layer: usize, heads: &Heads, tokens: &Tensor) -> Result<()> {
        let (keys, values) = &self.layers[layer];
        let (_, kv_heads, _, width) = keys.dims4()?;
        let (rows, count) = tokens.dims2()?;
        for (cache, new) in [(keys, &heads.keys), (values, &heads.values)] {
            let all = new
                .index_select(&tokens.flatten_all()?, 0)?
                .reshape((rows, count, kv_heads, width))?;
            cache.slice_set(&all.transpose(1, 2)?.contiguous()?, 2, 0)?;
        }
        Ok(())
    }

    /// Stores the keys and values of packed tokens at the beginning of some rows: each of `rows`
    /// has its tokens and its cache row.
    pub(super) fn fill(
        &self,
        layer: usize,
        heads: &Heads,
        rows: impl Iterator<Item = (Range<usize>, usize)>,
    ) -> Result<()> {
        let (keys, values) = &self.layers[layer];
        let (_, kv_heads, _, width) = keys.dims4()?;
        for (tokens, place) in rows {
            for (cache, new) in [(keys, &heads.keys), (values, &heads.values)] {
                let own = new.narrow(0, tokens.start, tokens.len())?.reshape((
                    1,
                    tokens.len(),
                    kv_heads,
                    width,
                ))?;
                cache
                    .narrow(0, place, 1)?
                    .slice_set(&own.transpose(1, 2)?.contiguous()?, 2, 0)?;
            }
        }
        Ok(())
    }

    /// Stores keys and values of new tokens, then computes attention. `projected` are its queries,
    /// keys and values before their rotation, `[A, H or KV * head_dim]`. Returns the mixed values
    /// `[A, H * head_dim]`.
    pub(super) fn attend(
        &self,
        layer: usize,
        projected: &[Tensor; 3],
        rope: &Rope,
        rows: &DecodeRows,
    ) -> Result<Tensor> {
        let ((keys, values), [queries, new_keys, new_values]) = (&self.layers[layer], projected);
        let turned =
            ops::decode_heads([queries, new_keys, new_values], rope, [keys, values], rows)?;
        Ok(ops::decode_attention(&turned, keys, values, rows)?)
    }
}
