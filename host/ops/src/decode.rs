//! Attention of new tokens over a KV cache.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::{CpuStorage, CustomOp3, DType, Error, InplaceOp2, Layout, Result, Shape, Tensor};
use half::bf16;

use super::kept::DecodeRows;
use super::kernel::Real;
use super::kernel::{dot, dtype_error, for_rows, layout_error, maximum, slice, sum};
use super::{Rope, fused, generic, is_rounded, to_dtype};

/// Numbers of a head that are combined at a time, in registers.
const BLOCK: usize = 32;

/// Writes `new` `[A, H, 1, width]` to its places in `cache` `[B, H, S, width]`.
pub fn append_to_cache(cache: &Tensor, new: &Tensor, rows: &DecodeRows) -> Result<()> {
    if !fused(cache) && !is_rounded(cache) {
        return generic::append_to_cache(cache, new, rows);
    }
    cache.inplace_op2(new, &Append(rows.clone()))
}

/// Queries, keys and values of new tokens, `[A, H or KV * width]`, before their rotation by `rope`. Keys and values go to their places in
/// the caches; returns the rotated queries, `[A, H * width]`.
pub fn decode_heads(
    [queries, keys, values]: [&Tensor; 3],
    rope: &Rope,
    [key_cache, value_cache]: [&Tensor; 2],
    rows: &DecodeRows,
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(queries) {
        let table = rope.table.on(queries.device())?;
        return super::cuda::decode_heads([queries, keys, values], &table, [key_cache, value_cache], rows);
    }
    let (_, kv_heads, _, width) = key_cache.dims4()?;
    let (active, all) = queries.dims2()?;
    append_to_cache(key_cache, &rope.apply(&keys.unsqueeze(1)?, kv_heads)?, rows)?;
    append_to_cache(value_cache, &values.reshape((active, kv_heads, 1, width))?, rows)?;
    rope.apply(&queries.unsqueeze(1)?, all / width.max(1))?.reshape((active, all))
}

/// Attention of `queries` `[A, H * width]` over the caches `[B, KV, S, width]` up to their own positions, as `[A, H * width]`.
pub fn decode_attention(queries: &Tensor, keys: &Tensor, values: &Tensor, rows: &DecodeRows) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(queries) && super::cuda::attends(queries, keys)? {
        return super::cuda::decode_attention(queries, keys, values, rows);
    }
    if is_rounded(queries) {
        // The cache stays bf16 and is widened one head at a time.
        let mixed = to_dtype(queries, DType::F32)?.apply_op3_no_bwd(keys, values, &Attend(rows.clone()))?;
        return to_dtype(&mixed, DType::BF16);
    }
    if !fused(queries) {
        return generic::decode_attention(queries, keys, values, rows);
    }
    queries.apply_op3_no_bwd(keys, values, &Attend(rows.clone()))
}

struct Append(DecodeRows);

impl Append {
    fn write<T: Copy>(&self, (cache, cl): (&mut [T], &Layout), (new, nl): (&[T], &Layout)) -> Result<()> {
        let (_, heads, tokens, width) = cl.shape().dims4()?;
        let (Some((0, _)), Some((from, to))) = (cl.contiguous_offsets(), nl.contiguous_offsets()) else {
            return Err(Error::RequiresContiguous { op: self.name() });
        };
        if to - from != self.0.cache_rows.len() * heads * width || self.0.longest() > tokens {
            return layout_error(self.name(), format!("{:?} does not fit {:?}", nl.dims(), cl.dims()));
        }
        for (run, new) in new[from..to].chunks_exact(width).enumerate() {
            let (row, position, head) = (self.0.cache_rows[run / heads], self.0.positions[run / heads], run % heads);
            let at = ((row * heads + head) * tokens + position) * width;
            cache[at..at + width].copy_from_slice(new);
        }
        Ok(())
    }
}

impl InplaceOp2 for Append {
    fn name(&self) -> &'static str {
        "append-to-cache"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, cl: &Layout, new: &CpuStorage, nl: &Layout) -> Result<()> {
        match (&mut *cache, new) {
            (CpuStorage::F32(cache), CpuStorage::F32(new)) => self.write((cache, cl), (new, nl)),
            (CpuStorage::BF16(cache), CpuStorage::BF16(new)) => self.write((cache, cl), (new, nl)),
            (cache, _) => dtype_error(cache, self.name()),
        }
    }
}

struct Attend(DecodeRows);

/// The numbers of a cache, in its dtype.
enum Cached<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Cached<'a> {
    fn new(storage: &'a CpuStorage, layout: &Layout, op: &'static str) -> Result<Self> {
        match storage {
            CpuStorage::F32(_) => Ok(Self::F32(slice(storage, layout, op)?)),
            CpuStorage::BF16(_) => Ok(Self::Bf16(slice(storage, layout, op)?)),
            other => dtype_error(other, op),
        }
    }

    fn part(&self, range: Range<usize>) -> Cow<'a, [f32]> {
        match self {
            Self::F32(values) => Cow::Borrowed(&values[range]),
            Self::Bf16(values) => Cow::Owned(values[range].iter().map(|value| value.to_f32()).collect()),
        }
    }
}

impl Attend {
    /// Attention of one row and one key-value head; `queries` and `out` are the heads that share it, `[G * width]`.
    #[inline(always)]
    fn group(&self, queries: &[f32], keys: &[f32], values: &[f32], width: usize, out: &mut [f32]) {
        let count = keys.len() / width;
        let scale = 1.0 / (width as f32).sqrt();
        let mut probs = vec![0.0f32; count];
        for (query, out) in queries.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            for (prob, key) in probs.iter_mut().zip(keys.chunks_exact(width)) {
                *prob = dot(query, key) * scale;
            }
            let largest = maximum(&probs);
            probs.iter_mut().for_each(|prob| *prob = Real::exp(*prob - largest));
            let inverse = 1.0 / sum(&probs);
            probs.iter_mut().for_each(|prob| *prob *= inverse);
            let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
            let first = BLOCK * blocks.len();
            for (number, out) in blocks.iter_mut().enumerate() {
                let mut mixed = [0.0; BLOCK];
                for (prob, value) in probs.iter().zip(values.chunks_exact(width)) {
                    let value = &value[BLOCK * number..][..BLOCK];
                    mixed.iter_mut().zip(value).for_each(|(mixed, value)| *mixed += *prob * *value);
                }
                *out = mixed;
            }
            for (prob, value) in probs.iter().zip(values.chunks_exact(width)) {
                rest.iter_mut().zip(&value[first..]).for_each(|(out, value)| *out += *prob * *value);
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
        let (keys, values) = (Cached::new(k, kl, self.name())?, Cached::new(v, vl, self.name())?);
        let group = queries.len() / (rows.cache_rows.len() * kv_heads).max(1);
        if !group.is_multiple_of(width) || rows.longest() > tokens || kl.shape() != vl.shape() {
            return layout_error(self.name(), format!("queries {:?} do not fit {:?}", ql.dims(), kl.dims()));
        }
        let mut out = vec![0.0f32; queries.len()];
        for_rows!(&mut out, group, rows.longest(), |run, out| {
            let (active, head) = (run / kv_heads, run % kv_heads);
            let base = (rows.cache_rows[active] * kv_heads + head) * tokens;
            let range = base * width..(base + rows.positions[active] + 1) * width;
            let queries = &queries[run * group..][..group];
            self.group(queries, &keys.part(range.clone()), &values.part(range), width, out);
        });
        Ok((CpuStorage::F32(out), ql.shape().clone()))
    }
}
