//! The KV cache: keys and values of all tokens so far, in storage that is allocated once.

use std::ops::Range;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::config::Config;
use super::decoder::Heads;
use super::ops::{self, DecodeRows, Rope};

/// The keys and values of all layers.
pub(super) struct KvCache {
    layers: Vec<LayerCache>,
}

/// Keys and values of one layer, `[B, KV, S, head_dim]` each; S is the longest possible row.
struct LayerCache {
    keys: Tensor,
    values: Tensor,
}

/// The packed tokens of a row's prompt, and the cache row that stores them.
pub(super) struct PromptSlot {
    pub(super) tokens: Range<usize>,
    pub(super) cache_row: usize,
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
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for _ in 0..config.num_hidden_layers {
            layers.push(LayerCache {
                keys: Tensor::zeros(shape, dtype, device)?,
                values: Tensor::zeros(shape, dtype, device)?,
            });
        }
        Ok(Self { layers })
    }

    /// Stores the keys and values of packed tokens at the beginning of all cache rows. `tokens`,
    /// `[B, P]` u32, has the packed token of each place, or `u32::MAX` for a place that stays
    /// empty.
    pub(super) fn fill_all(&self, layer: usize, heads: &Heads, tokens: &Tensor) -> Result<()> {
        let LayerCache { keys, values } = &self.layers[layer];
        let (_, kv_heads, _, width) = keys.dims4()?;
        let (rows, count) = tokens.dims2()?;
        let tokens = tokens.flatten_all()?;
        for (cache, new) in [(keys, &heads.keys), (values, &heads.values)] {
            let all = new
                .index_select(&tokens, 0)?
                .reshape((rows, count, kv_heads, width))?;
            cache.slice_set(&all.transpose(1, 2)?.contiguous()?, 2, 0)?;
        }
        Ok(())
    }

    /// Stores the keys and values of packed tokens at the beginning of some cache rows.
    pub(super) fn fill(&self, layer: usize, heads: &Heads, rows: &[PromptSlot]) -> Result<()> {
        let LayerCache { keys, values } = &self.layers[layer];
        let (_, kv_heads, _, width) = keys.dims4()?;
        for PromptSlot { tokens, cache_row } in rows {
            let count = tokens.len();
            for (cache, new) in [(keys, &heads.keys), (values, &heads.values)] {
                let own = new.narrow(0, tokens.start, count)?;
                let own = own.reshape((1, count, kv_heads, width))?;
                let own = own.transpose(1, 2)?.contiguous()?;
                cache.narrow(0, *cache_row, 1)?.slice_set(&own, 2, 0)?;
            }
        }
        Ok(())
    }

    /// Stores the keys and values of new tokens, then computes their attention. `projected` holds
    /// their queries, keys and values before the rotation, `[A, H or KV * head_dim]`. Returns the
    /// mixed values `[A, H * head_dim]`.
    pub(super) fn attend(
        &self,
        layer: usize,
        projected: &[Tensor; 3],
        rope: &Rope,
        rows: &DecodeRows,
    ) -> Result<Tensor> {
        let LayerCache { keys, values } = &self.layers[layer];
        let queries = ops::decode_heads(projected.each_ref(), rope, [keys, values], rows)?;
        Ok(ops::decode_attention(&queries, keys, values, rows)?)
    }
}
