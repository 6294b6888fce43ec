//! The KV cache: keys and values of all tokens so far, in storage that is allocated once.

use std::ops::Range;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::attention::Heads;
use super::config::Config;
use super::ops::{self, DecodeRows, Rope};

/// One pair of `[B, KV, S, head_dim]` tensors per layer; S is the longest possible row.
pub(super) struct KvCache {
    layers: Vec<(Tensor, Tensor)>,
}

impl KvCache {
    pub(super) fn new(config: &Config, rows: usize, tokens: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = (rows, config.num_key_value_heads, tokens, config.head_dim());
        let layer = |_| {
            let zeros = || Tensor::zeros(shape, dtype, device);
            Ok((zeros()?, zeros()?))
        };
        Ok(Self { layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()? })
    }

    /// Stores keys and values of the distinct prompts: cache row `b` receives row `prompt_of[b]`.
    pub(super) fn fill(&self, layer: usize, heads: &Heads, prompt_of: &Tensor) -> Result<()> {
        let (keys, values) = &self.layers[layer];
        keys.slice_set(&heads.keys.index_select(prompt_of, 0)?, 2, 0)?;
        Ok(values.slice_set(&heads.values.index_select(prompt_of, 0)?, 2, 0)?)
    }

    /// Stores keys and values of the distinct prompt `prompt` in cache row `place`, from column `from` on.
    pub(super) fn fill_place(
        &self,
        layer: usize,
        heads: &Heads,
        prompt: usize,
        place: usize,
        from: usize,
    ) -> Result<()> {
        let (keys, values) = &self.layers[layer];
        for (cache, new) in [(keys, &heads.keys), (values, &heads.values)] {
            cache.narrow(0, place, 1)?.slice_set(&new.narrow(0, prompt, 1)?.contiguous()?, 2, from)?;
        }
        Ok(())
    }

    /// Moves the columns `columns` of cache row `place` to the front.
    pub(super) fn move_to_the_front(&self, place: usize, columns: Range<usize>) -> Result<()> {
        for cache in self.layers.iter().flat_map(|(keys, values)| [keys, values]) {
            let row = cache.narrow(0, place, 1)?;
            row.slice_set(&row.narrow(2, columns.start, columns.len())?.force_contiguous()?, 2, 0)?;
        }
        Ok(())
    }

    /// Stores keys and values of one new token per active row, then computes attention. `projected` are its queries, keys and values
    /// before their rotation. Returns the mixed values `[A, 1, H * head_dim]`.
    pub(super) fn attend(
        &self,
        layer: usize,
        projected: &[Tensor; 3],
        rope: &Rope,
        rows: &DecodeRows,
    ) -> Result<Tensor> {
        let ((keys, values), [queries, new_keys, new_values]) = (&self.layers[layer], projected);
        let turned = ops::decode_heads([queries, new_keys, new_values], rope, [keys, values], rows)?;
        Ok(ops::decode_attention(&turned, keys, values, rows)?.reshape(queries.shape())?)
    }
}
