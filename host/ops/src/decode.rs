//! Attention of new tokens over a KV cache.

use candle_core::{CpuStorage, CustomOp3, Error, InplaceOp2, Layout, Result, Shape, Tensor};

use super::kept::DecodeRows;
use super::kernel::{Arg, custom_op, dot, dtype_error, layout_error, maximum, rows, sum};
use super::number::{Number, Real};
use super::{Rope, by_kernel, generic};

/// Numbers of a head that are combined at a time, in registers.
const BLOCK: usize = 32;

/// Writes `new` `[A, H, 1, width]` to its places in `cache` `[B, H, S, width]`.
pub fn append_to_cache(cache: &Tensor, new: &Tensor, rows: &DecodeRows) -> Result<()> {
    cache.inplace_op2(new, &Append(rows.clone()))
}

/// Queries, keys and values of new tokens, `[A, H or KV * width]`, before their rotation by `rope`.
/// Keys and values go to their places in the caches; returns the rotated queries, `[A, H * width]`.
pub fn decode_heads(
    [queries, keys, values]: [&Tensor; 3],
    rope: &Rope,
    [key_cache, value_cache]: [&Tensor; 2],
    rows: &DecodeRows,
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(queries) {
        let table = rope.table.on(queries.device())?;
        return super::cuda::decode_heads(
            [queries, keys, values],
            &table,
            [key_cache, value_cache],
            rows,
        );
    }
    let (_, kv_heads, _, width) = key_cache.dims4()?;
    let (active, all) = queries.dims2()?;
    append_to_cache(key_cache, &rope.apply(&keys.unsqueeze(1)?, kv_heads)?, rows)?;
    append_to_cache(
        value_cache,
        &values.reshape((active, kv_heads, 1, width))?,
        rows,
    )?;
    rope.apply(&queries.unsqueeze(1)?, all / width.max(1))?
        .reshape((active, all))
}

/// Attention of `queries` `[A, H * width]` over the caches `[B, KV, S, width]` up to their own
/// positions, as `[A, H * width]`.
pub fn decode_attention(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    rows: &DecodeRows,
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(queries) && super::cuda::attends(queries, keys)? {
        return super::cuda::decode_attention(queries, keys, values, rows);
    }
    by_kernel(
        [queries, keys, values],
        || generic::decode_attention(queries, keys, values, rows),
        |[queries, keys, values]| queries.apply_op3_no_bwd(&keys, &values, &Attend(rows.clone())),
    )
}

struct Append(DecodeRows);

impl Append {
    fn write<T: Copy>(
        &self,
        (cache, cl): (&mut [T], &Layout),
        (new, nl): (&[T], &Layout),
    ) -> Result<()> {
        let (_, heads, tokens, width) = cl.shape().dims4()?;
        let (Some((0, _)), Some((from, to))) = (cl.contiguous_offsets(), nl.contiguous_offsets())
        else {
            return Err(Error::RequiresContiguous { op: self.name() });
        };
        if to - from != self.0.cache_rows.len() * heads * width || self.0.longest() > tokens {
            return layout_error(
                self.name(),
                format!("{:?} does not fit {:?}", nl.dims(), cl.dims()),
            );
        }
        for (run, new) in new[from..to].chunks_exact(width).enumerate() {
            let (row, position, head) = (
                self.0.cache_rows[run / heads],
                self.0.positions[run / heads],
                run % heads,
            );
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

    fn cpu_fwd(
        &self,
        cache: &mut CpuStorage,
        cl: &Layout,
        new: &CpuStorage,
        nl: &Layout,
    ) -> Result<()> {
        match (&mut *cache, new) {
            (CpuStorage::F32(cache), CpuStorage::F32(new)) => self.write((cache, cl), (new, nl)),
            (CpuStorage::BF16(cache), CpuStorage::BF16(new)) => self.write((cache, cl), (new, nl)),
            (cache, _) => dtype_error(cache, self.name()),
        }
    }
}

struct Attend(DecodeRows);

impl Attend {
    /// Attention of one row and one key-value head; `queries` and `out` are the heads that share
    /// it, `[G * width]`.
    #[inline(always)]
    fn group<T: Real>(&self, queries: &[T], keys: &[T], values: &[T], width: usize, out: &mut [T]) {
        let count = keys.len() / width;
        let scale = T::from_f64(1.0) / T::from_f64(width as f64).sqrt();
        let mut probs = vec![T::from_f64(0.0); count];
        for (query, out) in queries.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            for (prob, key) in probs.iter_mut().zip(keys.chunks_exact(width)) {
                *prob = dot(query, key) * scale;
            }
            let largest = maximum(&probs);
            probs
                .iter_mut()
                .for_each(|prob| *prob = (*prob - largest).exp());
            let inverse = T::from_f64(1.0) / sum(&probs);
            probs.iter_mut().for_each(|prob| *prob *= inverse);
            let (blocks, rest) = out.as_chunks_mut::<BLOCK>();
            let first = BLOCK * blocks.len();
            for (number, out) in blocks.iter_mut().enumerate() {
                let mut mixed = [T::from_f64(0.0); BLOCK];
                for (prob, value) in probs.iter().zip(values.chunks_exact(width)) {
                    let value = &value[BLOCK * number..][..BLOCK];
                    mixed
                        .iter_mut()
                        .zip(value)
                        .for_each(|(mixed, value)| *mixed += *prob * *value);
                }
                *out = mixed;
            }
            rest.fill(T::from_f64(0.0));
            for (prob, value) in probs.iter().zip(values.chunks_exact(width)) {
                rest.iter_mut()
                    .zip(&value[first..])
                    .for_each(|(out, value)| *out += *prob * *value);
            }
        }
    }

    fn run<N: Number>(
        &self,
        (queries, shape): Arg<'_, N>,
        (keys, of_keys): Arg<'_, N>,
        (values, of_values): Arg<'_, N>,
    ) -> Result<(Vec<N>, Shape)> {
        let (_, kv_heads, tokens, width) = of_keys.dims4()?;
        let places = &self.0;
        let group = queries.len() / (places.cache_rows.len() * kv_heads).max(1);
        if !group.is_multiple_of(width) || places.longest() > tokens || of_keys != of_values {
            return layout_error(
                self.name(),
                format!("queries {shape:?} do not fit {of_keys:?}"),
            );
        }
        let out = rows!(N; queries.len(), group, places.longest(), |run, out| {
            let (active, head) = (run / kv_heads, run % kv_heads);
            let base = (places.cache_rows[active] * kv_heads + head) * tokens;
            let range = base * width..(base + places.positions[active] + 1) * width;
            let queries = N::read(&queries[run * group..][..group]);
            self.group(&queries, &N::read(&keys[range.clone()]), &N::read(&values[range]), width, out);
        });
        Ok((out, shape.clone()))
    }
}

custom_op!(Attend, "decode-attention", CustomOp3);
