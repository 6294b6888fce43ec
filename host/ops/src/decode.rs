//! Attention of new tokens over a KV cache.

use candle_core::{CpuStorage, CustomOp3, Error, InplaceOp2, Layout, Result, Shape, Tensor};

use super::kept::DecodeRows;
use super::kernel::{Arg, argument, custom_op, dot, dtype_error, layout_error, maximum, rows, sum};
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
    /// Writes the elements of `new` `[A, H, 1, width]` to their places in the cache `of_cache`.
    fn write<T: Copy>(&self, cache: &mut [T], of_cache: &Shape, new: Arg<'_, T>) -> Result<()> {
        let (_, heads, tokens, width) = of_cache.dims4()?;
        let fits = new.numbers.len() == self.0.cache_rows.len() * heads * width;
        if !fits || self.0.longest() > tokens {
            let dims = new.shape.dims();
            return layout_error(
                self.name(),
                format!("{dims:?} does not fit {:?}", of_cache.dims()),
            );
        }
        for (run, new) in new.numbers.chunks_exact(width).enumerate() {
            let row = self.0.cache_rows[run / heads];
            let position = self.0.positions[run / heads];
            let head = run % heads;
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
        of_cache: &Layout,
        new: &CpuStorage,
        of_new: &Layout,
    ) -> Result<()> {
        let op = self.name();
        let Some((0, _)) = of_cache.contiguous_offsets() else {
            return Err(Error::RequiresContiguous { op });
        };
        match cache {
            CpuStorage::F32(cache) => {
                self.write(cache, of_cache.shape(), argument(new, of_new, op)?)
            }
            CpuStorage::BF16(cache) => {
                self.write(cache, of_cache.shape(), argument(new, of_new, op)?)
            }
            cache => dtype_error(cache, op),
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
        queries: Arg<'_, N>,
        keys: Arg<'_, N>,
        values: Arg<'_, N>,
    ) -> Result<(Vec<N>, Shape)> {
        let (_, kv_heads, tokens, width) = keys.shape.dims4()?;
        let places = &self.0;
        let group = queries.numbers.len() / (places.cache_rows.len() * kv_heads).max(1);
        let fits =
            group.is_multiple_of(width) && places.longest() <= tokens && keys.shape == values.shape;
        if !fits {
            return layout_error(
                self.name(),
                format!("queries {:?} do not fit {:?}", queries.shape, keys.shape),
            );
        }
        let out = rows!(N; queries.numbers.len(), group, places.longest(), |run, out| {
            let active = run / kv_heads;
            let head = run % kv_heads;
            let base = (places.cache_rows[active] * kv_heads + head) * tokens;
            let range = base * width..(base + places.positions[active] + 1) * width;
            let queries = N::read(&queries.numbers[run * group..][..group]);
            let keys = N::read(&keys.numbers[range.clone()]);
            let values = N::read(&values.numbers[range]);
            self.group(&queries, &keys, &values, width, out);
        });
        Ok((out, queries.shape.clone()))
    }
}

custom_op!(Attend, "decode-attention", CustomOp3);
