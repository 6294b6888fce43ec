//! Sizes and tensors of attention, of which `ops` has the computation.

use candle_core::Tensor;

use super::config::Config;
use super::ops::HeadSizes;

/// Sizes that determine the shapes inside a layer, and the epsilon of its RMSNorms.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) heads: HeadSizes,
    pub(super) eps: f64,
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

impl Sizes {
    pub(super) fn of(config: &Config) -> Self {
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        Self { heads: HeadSizes { heads, kv_heads, width: config.head_dim() }, eps: config.rms_norm_eps }
    }
}
