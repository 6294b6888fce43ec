//! New tokens over a cache, against the kernels of the CPU.

use std::sync::Arc;

use candle_core::Tensor;
use host_ops::{self as ops, DecodeRows, Frequencies, Rope, RopeTable};

use super::gpu::{Bf16, Dtype, F32, Gpu, check, wave};

fn random(dtype: Dtype, shape: &[usize], phase: f64) -> Tensor {
    dtype.tensor(&wave(shape.iter().product(), phase), shape)
}

/// Of four rows, 2, 0 and 3 still generate; one begins with its new token.
const CACHE_ROWS: [u32; 3] = [2, 0, 3];

#[test]
fn heads_go_to_the_cache_and_attend() {
    let Some(gpu) = Gpu::open() else { return };
    // Key heads, queries that share one, numbers of a head, last position, keys of a part.
    for (dtype, kv_heads, group, width, index, length) in [
        (F32, 2, 1, 64, 40, 64),
        (Bf16, 2, 3, 64, 300, 512),
        (Bf16, 1, 7, 80, 70, 128),
        (F32, 2, 3, 96, 65, 16),
        (Bf16, 1, 5, 128, 290, 128),
        (F32, 2, 2, 6, 33, 8),
        (Bf16, 1, 9, 128, 3, 128),
        (F32, 1, 1, 256, 20, 128),
    ] {
        let (heads, tokens) = (kv_heads * group, index + 3);
        let positions = [index as u32, 0, index as u32 / 2];
        let whole = |numbers: [u32; 3]| numbers.map(|number| number as usize).to_vec();
        let rows = DecodeRows::new(whole(CACHE_ROWS), whole(positions));
        let table = Arc::new(RopeTable::new(tokens, &Frequencies::new(width, 1e4)));
        let rope = Rope::at(table, &rows.positions);
        let [q, k, v] = [(heads, 0.1), (kv_heads, 0.7), (kv_heads, 1.3)]
            .map(|(heads, phase)| random(dtype, &[3, 1, heads * width], phase));
        let [keys, values] =
            [0.4, 1.1].map(|phase| random(dtype, &[4, kv_heads, tokens, width], phase));
        // The three are parts of one row.
        let all = gpu.store(dtype, &Tensor::cat(&[&q, &k, &v], 2).unwrap());
        let bytes = all.len() / (3 * (heads + 2 * kv_heads));
        let (on_k, on_v) = (
            all.slice(bytes * heads..),
            all.slice(bytes * (heads + kv_heads)..),
        );
        let line = ((heads + 2 * kv_heads) * width) as u32;
        let (frequency, half) = (
            |i: usize| (1e4f64.powf(-2.0 * i as f64 / width as f64)) as f32,
            width / 2,
        );
        let angles = || (0..tokens).flat_map(|p| (0..half).map(move |i| p as f32 * frequency(i)));
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles().map(|angle| (angle.cos(), angle.sin())).unzip();
        let (on_cos, on_sin) = (gpu.put(&cos), gpu.put(&sin));
        let places = gpu.put(&[CACHE_ROWS, positions].concat());
        let parts = (index + 1).div_ceil(length);
        let words =
            [3, heads, kv_heads, group, tokens, width, length, parts].map(|word| word as u32);
        let [a, h, kv, g, s, w, of_part, of_query] = &words;
        let scale = (width as f32).powf(-0.5);
        let run = || {
            let (mut turned, mut out) = (
                gpu.room(dtype, 3 * heads * width),
                gpu.room(dtype, 3 * heads * width),
            );
            let (mut on_keys, mut on_values) = (gpu.store(dtype, &keys), gpu.store(dtype, &values));
            let (mut mixed, mut sizes) = (
                gpu.room(F32, 3 * heads * parts * width),
                gpu.room(F32, 6 * heads * parts),
            );
            let pairs = 3 * (heads + 2 * kv_heads) * half;
            launch!(
                gpu,
                &dtype.of("decode_heads"),
                pairs.div_ceil(256),
                &all,
                &on_k,
                &on_v,
                &on_cos,
                &on_sin,
                &places,
                &mut turned,
                &mut on_keys,
                &mut on_values,
                &line,
                &line,
                &line,
                a,
                h,
                kv,
                s,
                w
            );
            launch!(
                gpu,
                &dtype.of("decode_attention"),
                (3 * kv_heads, parts),
                &turned,
                &on_keys,
                &on_values,
                &places,
                &mut out,
                &mut mixed,
                &mut sizes,
                a,
                kv,
                g,
                s,
                w,
                of_part,
                &scale
            );
            if parts > 1 {
                launch!(
                    gpu,
                    &dtype.of("join_parts"),
                    3 * heads,
                    &mixed,
                    &sizes,
                    &mut out,
                    of_query,
                    w
                );
            }
            [&turned, &on_keys, &on_values, &out]
                .map(|memory| gpu.load(dtype, memory))
                .to_vec()
        };
        let (of_keys, of_values) = (keys.copy().unwrap(), values.copy().unwrap());
        let [q, k, v] = [&q, &k, &v].map(|heads| heads.squeeze(1).unwrap());
        let turned = ops::decode_heads([&q, &k, &v], &rope, [&of_keys, &of_values], &rows).unwrap();
        let out = ops::decode_attention(&turned, &of_keys, &of_values, &rows).unwrap();
        let what = format!("decode {kv_heads} x {group} x {width}");
        check(&what, dtype, run, &[&turned, &of_keys, &of_values, &out]);
    }
}
