//! Causal attention over whole sequences, and its gradient.
//!
//! Attention probabilities of short sequences are stored for the backward pass. For long sequences, `[B, H, S, S]` would dominate memory.
//! There, each block of queries computes its probabilities over the keys up to its end, and again in the backward pass.

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;

use super::config::Config;
use super::ops;
use super::size::{BLOCK, LONGEST_WHOLE};

/// Sizes that determine the shapes inside a layer, and the epsilon of its RMSNorms.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) eps: f64,
}

/// Queries, keys and values of a batch after rotation, heads first: `[B, H or KV, S, head_dim]`.
#[derive(Clone)]
pub(super) struct Heads {
    pub(super) queries: Tensor,
    pub(super) keys: Tensor,
    pub(super) values: Tensor,
}

impl Sizes {
    pub(super) fn of(config: &Config) -> Self {
        Self {
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim(),
            eps: config.rms_norm_eps,
        }
    }

    /// Factor of attention scores, `1 / √head_dim`.
    pub(super) fn scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }

    /// Number of query heads that share one key head.
    fn shared(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Reshapes `[B, H, S, head_dim]` to `[B, S, H * head_dim]`.
    fn tokens_first(&self, by_head: &Tensor) -> Result<Tensor> {
        let (rows, _, tokens, _) = by_head.dims4()?;
        Ok(by_head.transpose(1, 2)?.reshape((rows, tokens, self.heads * self.head_dim))?)
    }
}

/// Returns the attention probabilities `[B, H, S, S]` of a short sequence, and the mixed values `[B, S, H * head_dim]`.
pub(super) fn attend(sizes: Sizes, heads: &Heads, starts: &Arc<[usize]>) -> Result<(Option<Tensor>, Tensor)> {
    let (_, _, tokens, _) = heads.queries.dims4()?;
    if tokens <= LONGEST_WHOLE {
        let block = Block::whole(sizes, heads)?;
        let probs = block.probs(starts)?;
        let mixed = block.mix(&probs)?;
        return Ok((Some(probs), sizes.tokens_first(&mixed)?));
    }
    let mixed = blocks(tokens).map(|(first, count)| {
        let block = Block::new(sizes, heads, first, count)?;
        block.mix(&block.probs(starts)?)
    });
    let mixed = mixed.collect::<Result<Vec<_>>>()?;
    Ok((None, sizes.tokens_first(&Tensor::cat(&mixed, 2)?)?))
}

/// Gradients by queries, keys and values, `[B, H or KV, S, head_dim]`, from the gradient by the mixed values `[B, S, H * head_dim]`.
/// `probs` are the probabilities that [`attend`] returned.
pub(super) fn attend_backward(
    sizes: Sizes,
    heads: &Heads,
    probs: Option<&Tensor>,
    starts: &Arc<[usize]>,
    d_mixed: &Tensor,
) -> Result<Heads> {
    let (rows, tokens, _) = d_mixed.dims3()?;
    let d_mixed = d_mixed.reshape((rows, tokens, sizes.heads, sizes.head_dim))?.transpose(1, 2)?.contiguous()?;
    if let Some(probs) = probs {
        return Block::whole(sizes, heads)?.backward(probs, starts, &d_mixed);
    }
    let mut queries = Vec::with_capacity(tokens.div_ceil(BLOCK));
    let (mut keys, mut values) = (heads.keys.zeros_like()?, heads.values.zeros_like()?);
    for (first, count) in blocks(tokens) {
        let block = Block::new(sizes, heads, first, count)?;
        let d_block = d_mixed.narrow(2, first, count)?.contiguous()?;
        let gradients = block.backward(&block.probs(starts)?, starts, &d_block)?;
        queries.push(gradients.queries);
        let after = tokens - first - count;
        keys = (keys + gradients.keys.pad_with_zeros(2, 0, after)?)?;
        values = (values + gradients.values.pad_with_zeros(2, 0, after)?)?;
    }
    Ok(Heads { queries: Tensor::cat(&queries, 2)?, keys, values })
}

/// First query and number of queries, for each block.
fn blocks(tokens: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..tokens).step_by(BLOCK).map(move |first| (first, BLOCK.min(tokens - first)))
}

/// Consecutive queries and the keys up to the last of them.
///
/// The query heads that share a key head are stacked along the token axis, so keys and values are never repeated.
struct Block {
    sizes: Sizes,
    /// Queries, `[B, KV, H / KV * Q, head_dim]`.
    queries: Tensor,
    /// Keys, `[B, KV, K, head_dim]`; the values have the same shape.
    keys: Tensor,
    values: Tensor,
    count: usize,
}

impl Block {
    fn whole(sizes: Sizes, heads: &Heads) -> Result<Self> {
        let (rows, _, count, width) = heads.queries.dims4()?;
        let queries = heads.queries.reshape((rows, sizes.kv_heads, sizes.shared() * count, width))?;
        Ok(Self { sizes, queries, keys: heads.keys.clone(), values: heads.values.clone(), count })
    }

    fn new(sizes: Sizes, heads: &Heads, first: usize, count: usize) -> Result<Self> {
        let seen = |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.narrow(2, 0, first + count)?.contiguous()?) };
        let queries = heads.queries.narrow(2, first, count)?.contiguous()?;
        Self::whole(sizes, &Heads { queries, keys: seen(&heads.keys)?, values: seen(&heads.values)? })
    }

    /// Attention probabilities, `[B, H, Q, K]`.
    fn probs(&self, starts: &Arc<[usize]>) -> Result<Tensor> {
        let scores = self.by_head(&ops::matmul(&self.queries, &self.keys.t()?)?)?;
        Ok(ops::causal_softmax(&scores, starts, self.sizes.scale())?)
    }

    /// The values mixed by the probabilities, `[B, H, Q, head_dim]`.
    fn mix(&self, probs: &Tensor) -> Result<Tensor> {
        self.by_head(&ops::matmul(&self.stacked(probs)?, &self.values)?)
    }

    /// Gradients by the block's queries, keys and values, `[B, H or KV, Q or K, head_dim]`; `d_mixed` is `[B, H, Q, head_dim]`.
    fn backward(&self, probs: &Tensor, starts: &Arc<[usize]>, d_mixed: &Tensor) -> Result<Heads> {
        let d_mixed = self.stacked(d_mixed)?;
        let values = ops::matmul(&self.stacked(probs)?.t()?, &d_mixed)?;
        let d_probs = self.by_head(&ops::matmul(&d_mixed, &self.values.t()?)?)?;
        let d_scores = ops::causal_softmax_backward(probs, &d_probs, starts, self.sizes.scale())?;
        let d_scores = self.stacked(&d_scores)?;
        let queries = self.by_head(&ops::matmul(&d_scores, &self.keys)?)?;
        Ok(Heads { queries, keys: ops::matmul(&d_scores.t()?, &self.queries)?, values })
    }

    /// Reshapes `[B, KV, H / KV * Q, n]` to `[B, H, Q, n]`.
    fn by_head(&self, stacked: &Tensor) -> Result<Tensor> {
        Ok(stacked.reshape((stacked.dim(0)?, self.sizes.heads, self.count, ()))?)
    }

    /// Reshapes `[B, H, Q, n]` to `[B, KV, H / KV * Q, n]`.
    fn stacked(&self, by_head: &Tensor) -> Result<Tensor> {
        Ok(by_head.reshape((by_head.dim(0)?, self.sizes.kv_heads, self.sizes.shared() * self.count, ()))?)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::ops::testing::distance;
    use super::*;

    /// A length above the limit for stored probabilities, and not a multiple of the block size.
    const TOKENS: usize = LONGEST_WHOLE + BLOCK + 5;

    fn wave(shape: &[usize], phase: f64) -> Tensor {
        let values = (0..shape.iter().product()).map(|i| (i as f64 * 0.37 + phase).sin() as f32).collect();
        Tensor::from_vec::<_, f32>(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn blocks_of_queries_are_the_whole() {
        let sizes = Sizes { heads: 6, kv_heads: 2, head_dim: 8, eps: 1e-6 };
        let starts: Arc<[usize]> = Arc::from([0, 150]);
        for (dtype, tolerance) in [(DType::F32, 2e-6), (DType::BF16, 0.02)] {
            let of = |heads: usize, phase| wave(&[2, heads, TOKENS, 8], phase).to_dtype(dtype).unwrap();
            let heads = Heads { queries: of(6, 0.1), keys: of(2, 0.5), values: of(2, 0.9) };
            let d_mixed = wave(&[2, TOKENS, 48], 1.3).to_dtype(dtype).unwrap();
            let (none, mixed) = attend(sizes, &heads, &starts).unwrap();
            assert!(none.is_none());
            let block = Block::whole(sizes, &heads).unwrap();
            let probs = block.probs(&starts).unwrap();
            let expected = sizes.tokens_first(&block.mix(&probs).unwrap()).unwrap();
            let by_blocks = attend_backward(sizes, &heads, None, &starts, &d_mixed).unwrap();
            let at_once = attend_backward(sizes, &heads, Some(&probs), &starts, &d_mixed).unwrap();
            for (name, found, expected) in [
                ("mixed", &mixed, &expected),
                ("queries", &by_blocks.queries, &at_once.queries),
                ("keys", &by_blocks.keys, &at_once.keys),
                ("values", &by_blocks.values, &at_once.values),
            ] {
                let apart = distance(found, expected);
                assert!(apart <= tolerance, "{name} in {dtype:?}: {apart:e}");
            }
        }
    }
}
