//! Kernels of attention.

use super::gpu::{Gpu, assert_close, coarse, wave, widened};

const SCALE: f32 = 0.3;

/// Weights `[B, H, Q, S]` of causal attention, of the last Q of S queries.
fn attention(scores: &[f32], starts: &[u32], heads: usize, (queries, tokens): (usize, usize)) -> Vec<f64> {
    let mut weights = vec![0.0; scores.len()];
    for line in 0..starts.len() * heads * queries {
        let (start, query) = (starts[line / queries / heads] as usize, line % queries + tokens - queries);
        let keys = line * tokens + start.min(query + 1)..line * tokens + query + 1;
        let exps = scores[keys.clone()].iter().map(|score| (f64::from(SCALE) * f64::from(*score)).exp());
        let sum: f64 = exps.clone().sum();
        weights[keys].iter_mut().zip(exps).for_each(|(weight, exp)| *weight = exp / sum);
    }
    weights
}

#[test]
fn causal_attention_weights_and_their_gradient() {
    let Some(gpu) = Gpu::open() else { return };
    weights_and_their_gradient(&gpu, 300);
    // A block of queries.
    weights_and_their_gradient(&gpu, 17);
}

fn weights_and_their_gradient(gpu: &Gpu, queries: u32) {
    let (starts, heads, tokens) = ([0u32, 3], 2u32, 300u32);
    let lines = starts.len() * (heads * queries) as usize;
    let ((bits, scores), (grad_bits, grad)) =
        (coarse(&wave(lines * tokens as usize, 0.2)), coarse(&wave(lines * tokens as usize, 1.1)));
    let weights = attention(&scores, &starts, heads as usize, (queries as usize, tokens as usize));
    let on_gpu = gpu.put(&starts);
    let (mut out, mut out_bf16) = (gpu.fresh::<f32>(scores.len()), gpu.fresh::<u16>(scores.len()));
    launch!(gpu, "causal_softmax_f32", lines, &gpu.put(&scores), &on_gpu, &mut out, &heads, &queries, &tokens, &SCALE);
    launch!(
        gpu,
        "causal_softmax_bf16",
        lines,
        &gpu.put(&bits),
        &on_gpu,
        &mut out_bf16,
        &heads,
        &queries,
        &tokens,
        &SCALE
    );
    assert_close("causal_softmax_f32", &gpu.get(&out), &weights, 1e-6);
    assert_close("causal_softmax_bf16", &widened(&gpu.get(&out_bf16)), &weights, 4e-3);

    let gradient = |weights: &[f32]| -> Vec<f64> {
        let line = |(p, g): (&[f32], &[f32])| {
            let mean: f64 = p.iter().zip(g).map(|(p, g)| f64::from(*p) * f64::from(*g)).sum();
            let of = |(p, g): (&f32, &f32)| f64::from(SCALE) * f64::from(*p) * (f64::from(*g) - mean);
            p.iter().zip(g).map(of).collect::<Vec<_>>()
        };
        let lines = weights.chunks_exact(tokens as usize).zip(grad.chunks_exact(tokens as usize));
        lines.flat_map(line).collect()
    };
    let (mut back, mut back_bf16) = (gpu.fresh::<f32>(scores.len()), gpu.fresh::<u16>(scores.len()));
    let name = "causal_softmax_backward_f32";
    launch!(gpu, name, lines, &out, &gpu.put(&grad), &on_gpu, &mut back, &heads, &queries, &tokens, &SCALE);
    assert_close(name, &gpu.get(&back), &gradient(&gpu.get(&out)), 1e-6);
    let name = "causal_softmax_backward_bf16";
    launch!(
        gpu,
        name,
        lines,
        &out_bf16,
        &gpu.put(&grad_bits),
        &on_gpu,
        &mut back_bf16,
        &heads,
        &queries,
        &tokens,
        &SCALE
    );
    assert_close(name, &widened(&gpu.get(&back_bf16)), &gradient(&widened(&gpu.get(&out_bf16))), 4e-3);
}

/// Attention of one query over the keys and values of its row, all `[.., width]`.
fn mixed(query: &[f32], keys: &[f32], values: &[f32]) -> Vec<f64> {
    let width = query.len();
    let score =
        |key: &[f32]| f64::from(SCALE) * key.iter().zip(query).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum::<f64>();
    let exps: Vec<f64> = keys.chunks_exact(width).map(|key| score(key).exp()).collect();
    let sum: f64 = exps.iter().sum();
    let value =
        |w: usize| values.chunks_exact(width).zip(&exps).map(|(value, exp)| exp / sum * f64::from(value[w])).sum();
    (0..width).map(value).collect()
}

#[test]
fn a_token_joins_the_cache_and_attends_to_it() {
    let Some(gpu) = Gpu::open() else { return };
    let (rows, kv_heads, group, tokens) = (3usize, 2usize, 3usize, 40usize);
    // Row 1 has finished; row 0 sees fewer positions than there are warps.
    let (cache_rows, starts, index) = ([2u32, 0], [1u32, 33], 36u32);
    for width in [6usize, 64, 256] {
        let count = rows * kv_heads * tokens * width;
        let ((key_bits, mut keys), (value_bits, values)) = (coarse(&wave(count, 0.3)), coarse(&wave(count, 0.9)));
        let (new_bits, new) = coarse(&wave(2 * kv_heads * width, 0.5));
        let (query_bits, queries) = coarse(&wave(2 * kv_heads * group * width, 0.6));
        let (cache, cache_bf16) = (gpu.put(&keys), gpu.put(&key_bits));
        let (rows_on_gpu, starts_on_gpu) = (gpu.put(&cache_rows), gpu.put(&starts));
        let (new_len, blocks) = (new.len() as u32, new.len().div_ceil(256));
        let [h, g, t, w] = [kv_heads, group, tokens, width].map(|number| number as u32);
        let name = "append_to_cache_f32";
        launch!(gpu, name, blocks, &cache, &gpu.put(&new), &rows_on_gpu, &new_len, &h, &t, &w, &index);
        let name = "append_to_cache_bf16";
        launch!(gpu, name, blocks, &cache_bf16, &gpu.put(&new_bits), &rows_on_gpu, &new_len, &h, &t, &w, &index);
        for (run, new) in new.chunks_exact(width).enumerate() {
            let line = cache_rows[run / kv_heads] as usize * kv_heads + run % kv_heads;
            keys[(line * tokens + index as usize) * width..][..width].copy_from_slice(new);
        }
        assert_eq!(gpu.get(&cache), keys);
        assert_eq!(widened(&gpu.get(&cache_bf16)), keys);

        let (mut out, mut out_bf16) = (gpu.fresh::<f32>(queries.len()), gpu.fresh::<u16>(queries.len()));
        let (blocks, name) = (queries.len() / width, "decode_attention_f32");
        launch!(
            gpu,
            name,
            blocks,
            &gpu.put(&queries),
            &cache,
            &gpu.put(&values),
            &rows_on_gpu,
            &starts_on_gpu,
            &mut out,
            &h,
            &g,
            &t,
            &w,
            &index,
            &SCALE
        );
        let (queries_bf16, values_bf16, name) = (gpu.put(&query_bits), gpu.put(&value_bits), "decode_attention_bf16");
        launch!(
            gpu,
            name,
            blocks,
            &queries_bf16,
            &cache_bf16,
            &values_bf16,
            &rows_on_gpu,
            &starts_on_gpu,
            &mut out_bf16,
            &h,
            &g,
            &t,
            &w,
            &index,
            &SCALE
        );
        let expected: Vec<f64> = (0..blocks)
            .flat_map(|query| {
                let (active, head) = (query / kv_heads / group, query / group % kv_heads);
                let line = cache_rows[active] as usize * kv_heads + head;
                let seen =
                    (line * tokens + starts[active] as usize) * width..(line * tokens + index as usize + 1) * width;
                mixed(&queries[query * width..][..width], &keys[seen.clone()], &values[seen])
            })
            .collect();
        assert_close("decode_attention_f32", &gpu.get(&out), &expected, 1e-5);
        assert_close("decode_attention_bf16", &widened(&gpu.get(&out_bf16)), &expected, 4e-3);
    }
}
