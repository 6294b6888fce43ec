//! Attention of one new token per row over a key-value cache.

use candle_core::{CpuStorage, CustomOp3, InplaceOp2, Layout, Result, Shape, Tensor};

use super::decode_rows::DecodeRows;
use super::kernel::Real;
use super::kernel::{dot, dtype_error, for_rows_costing, layout_error, maximum, slice, sum};
use super::{fused, generic, has_kernel};

/// Widest head that the CUDA kernel takes.
pub(super) const MOST_WIDTH: usize = 256;

/// Writes `new` `[A, H, 1, width]` into `cache` `[B, H, S, width]` at `rows.index` of the active rows, in place.
pub(crate) fn append_to_cache(cache: &Tensor, new: &Tensor, rows: &DecodeRows) -> Result<()> {
    if !has_kernel(cache) {
        return generic::append_to_cache(cache, new, rows);
    }
    cache.inplace_op2(new, &Append(rows.clone()))
}

/// Attention of `queries` `[A, H * width]` over the caches `[B, KV, S, width]` up to `rows.index`, as `[A, H * width]`.
pub(crate) fn decode_attention(queries: &Tensor, keys: &Tensor, values: &Tensor, rows: &DecodeRows) -> Result<Tensor> {
    let too_wide = keys.dim(3)? > MOST_WIDTH && !fused(queries);
    if !has_kernel(queries) || too_wide {
        return generic::decode_attention(queries, keys, values, rows);
    }
    queries.apply_op3_no_bwd(keys, values, &Attend(rows.clone()))
}

struct Append(DecodeRows);

impl InplaceOp2 for Append {
    fn name(&self) -> &'static str {
        "append-to-cache"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, cl: &Layout, new: &CpuStorage, nl: &Layout) -> Result<()> {
        let new = slice::<f32>(new, nl, "append-to-cache")?;
        let (CpuStorage::F32(cache), Some((0, _))) = (&mut *cache, cl.contiguous_offsets()) else {
            return dtype_error(cache, "append-to-cache");
        };
        let (_, heads, tokens, width) = cl.shape().dims4()?;
        if new.len() != self.0.cache_rows.len() * heads * width || self.0.index >= tokens {
            return layout_error("append-to-cache", format!("{:?} does not fit {:?}", nl.dims(), cl.dims()));
        }
        for (run, new) in new.chunks_exact(width).enumerate() {
            let (row, head) = (self.0.cache_rows[run / heads], run % heads);
            let at = ((row * heads + head) * tokens + self.0.index) * width;
            cache[at..at + width].copy_from_slice(new);
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &mut candle_core::CudaStorage,
        al: &Layout,
        b: &candle_core::CudaStorage,
        bl: &Layout,
    ) -> Result<()> {
        super::cuda::append_to_cache((a, al), (b, bl), &self.0)
    }
}

struct Attend(DecodeRows);

impl Attend {
    /// One row and one key-value head: `queries` and `out` are the heads that share it, `[G * width]`.
    fn group(&self, queries: &[f32], keys: &[f32], values: &[f32], width: usize, out: &mut [f32]) {
        let count = keys.len() / width;
        let scale = 1.0 / (width as f32).sqrt();
        let mut weights = vec![0.0f32; count];
        for (query, out) in queries.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            for (weight, key) in weights.iter_mut().zip(keys.chunks_exact(width)) {
                *weight = dot(query, key) * scale;
            }
            let largest = maximum(&weights);
            weights.iter_mut().for_each(|weight| *weight = Real::exp(*weight - largest));
            let inverse = 1.0 / sum(&weights);
            for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
                let weight = *weight * inverse;
                out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * *value);
            }
        }
    }
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "decode-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, kv_heads, tokens, width) = kl.shape().dims4()?;
        let rows = &self.0;
        let queries = slice::<f32>(q, ql, self.name())?;
        let (keys, values) = (slice::<f32>(k, kl, self.name())?, slice::<f32>(v, vl, self.name())?);
        let group = queries.len() / (rows.cache_rows.len() * kv_heads).max(1);
        if !group.is_multiple_of(width) || rows.index >= tokens || kl.shape() != vl.shape() {
            return layout_error(self.name(), format!("queries {:?} do not fit {:?}", ql.dims(), kl.dims()));
        }
        let mut out = vec![0.0f32; queries.len()];
        for_rows_costing(&mut out, group, rows.index + 1, |run, out| {
            let (active, head) = (run / kv_heads, run % kv_heads);
            let base = (rows.cache_rows[active] * kv_heads + head) * tokens;
            let range = (base + rows.starts[active]) * width..(base + rows.index + 1) * width;
            let queries = &queries[run * group..][..group];
            self.group(queries, &keys[range.clone()], &values[range], width, out);
        });
        Ok((CpuStorage::F32(out), ql.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &candle_core::CudaStorage,
        al: &Layout,
        b: &candle_core::CudaStorage,
        bl: &Layout,
        c: &candle_core::CudaStorage,
        cl: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        super::cuda::decode_attention((a, al), (b, bl), (c, cl), &self.0)
    }
}
