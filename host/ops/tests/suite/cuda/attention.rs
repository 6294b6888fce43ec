//! Attention over packed rows, forward and backward, against the kernels of the CPU.

use candle_core::Tensor;
use host_ops::{self as ops, BLOCK, HeadSizes, Packing, SHARE};

use super::gpu::{Bf16, Dtype, F32, Gpu, check, wave};

fn random(dtype: Dtype, shape: &[usize], phase: f64) -> Tensor {
    dtype.tensor(&wave(shape.iter().product(), phase), shape)
}

#[test]
fn packed_rows_attend() {
    let Some(gpu) = Gpu::open() else { return };
    // Prompts and completions shorter and longer than a tile and than a block of the CPU's, no
    // completion, and an empty one.
    let long: [(usize, &[usize]); 3] = [
        (3, &[BLOCK + 22, 2, 0, 66]),
        (BLOCK + 12, &[1, 5]),
        (2, &[]),
    ];
    let short: [(usize, &[usize]); 3] = [(9, &[4, 4, 70]), (64, &[]), (1, &[63])];
    // More queries for a tile of keys than one share has.
    let wide: [(usize, &[usize]); 2] = [(70, &[200, SHARE + 9, 7]), (1, &[])];
    // Query heads, key heads, numbers of a head.
    for (dtype, stems, heads, kv_heads, width) in [
        (F32, long, 2, 1, 64),
        (Bf16, long, 2, 2, 64),
        (Bf16, short, 2, 2, 96),
        (F32, short, 3, 3, 6),
        (F32, short, 2, 1, 130),
        (Bf16, short, 1, 1, 256),
        (Bf16, short, 4, 2, 128),
        (Bf16, short, 3, 1, 8),
        (Bf16, short, 1, 1, 6),
    ]
    .map(|(dtype, stems, heads, kv_heads, width)| (dtype, stems.to_vec(), heads, kv_heads, width))
    .into_iter()
    .chain([
        (Bf16, wide.to_vec(), 2, 1, 16),
        (F32, wide.to_vec(), 1, 1, 6),
    ]) {
        let (packing, sizes) = (
            Packing::new(stems),
            HeadSizes {
                heads,
                kv_heads,
                width,
            },
        );
        let (rows, scale) = (packing.rows(), (width as f32).powf(-0.5));
        let [q, k, v] = [(heads, 0.1), (kv_heads, 0.5), (kv_heads, 0.9)]
            .map(|(heads, phase)| random(dtype, &[rows, heads * width], phase));
        let grad = random(dtype, &[rows, heads * width], 1.3);
        let form = [64, 128, 256]
            .into_iter()
            .find(|widest| width <= *widest)
            .unwrap();
        let (form, threads) = match dtype {
            Bf16 if width <= 128 && width % 8 == 0 => (format!("{form}_matrix"), 128),
            Bf16 => ("256".to_owned(), 256),
            F32 => (form.to_string(), 256),
        };
        let name = |kernel: &str| dtype.of(&format!("{kernel}_{form}"));
        // The three are parts of one row.
        let all = gpu.store(dtype, &Tensor::cat(&[&q, &k, &v], 1).unwrap());
        let bytes = all.len() / (rows * (heads + 2 * kv_heads));
        let (on_k, on_v) = (
            all.slice(bytes * heads..),
            all.slice(bytes * (heads + kv_heads)..),
        );
        let (on_grad, tables) = (gpu.store(dtype, &grad), packing.tables());
        let [_, queries, keys, joined] = &tables.arrays;
        let (blocks, key_blocks, joined_blocks) = (
            queries.len() / 4 * heads,
            keys.len() / 6 * kv_heads,
            joined.len() / 4,
        );
        let [firsts, queries, keys] = [0, 1, 2].map(|table| gpu.put(&tables.arrays[table]));
        let words = [
            (heads + 2 * kv_heads) * width,
            heads,
            heads / kv_heads,
            width,
            rows,
        ]
        .map(|word| word as u32);
        let [line, h, g, w, n] = &words;
        let run = || {
            let [mut out, mut by_q] = [0; 2].map(|_| gpu.room(dtype, rows * heads * width));
            let [mut by_k, mut by_v] = [0; 2].map(|_| gpu.room(dtype, rows * kv_heads * width));
            let mut stats = gpu.room(F32, 3 * heads * rows);
            let mut shares = gpu.room(F32, tables.shares.max(1) * 2 * 64 * kv_heads * width);
            launch!(
                gpu,
                &name("attention"),
                blocks; threads,
                &all,
                &on_k,
                &on_v,
                &firsts,
                &queries,
                &mut out,
                line,
                line,
                line,
                h,
                g,
                w,
                &scale
            );
            launch!(
                gpu,
                &name("attention_by_queries"),
                blocks; threads,
                &all,
                &on_k,
                &on_v,
                &on_grad,
                &firsts,
                &queries,
                &mut by_q,
                &mut stats,
                line,
                line,
                line,
                h,
                g,
                w,
                n,
                &scale
            );
            launch!(
                gpu,
                &name("attention_by_keys"),
                key_blocks; threads,
                &all,
                &on_k,
                &on_v,
                &on_grad,
                &firsts,
                &keys,
                &stats,
                &mut by_k,
                &mut by_v,
                &mut shares,
                line,
                line,
                line,
                h,
                g,
                w,
                n,
                &scale
            );
            if joined_blocks > 0 {
                let (joined, width) = (gpu.put(joined), (kv_heads * width) as u32);
                launch!(
                    gpu,
                    &dtype.of("join_shares"),
                    (joined_blocks, 2),
                    &joined,
                    &shares,
                    &mut by_k,
                    &mut by_v,
                    &width
                );
            }
            [&out, &by_q, &by_k, &by_v]
                .map(|memory| gpu.load(dtype, memory))
                .to_vec()
        };
        let mixed = ops::attention([&q, &k, &v], &packing, sizes).unwrap();
        let [by_q, by_k, by_v] =
            ops::attention_backward([&q, &k, &v], &grad, &packing, sizes).unwrap();
        check(
            &format!("attention {heads} x {kv_heads} x {width}"),
            dtype,
            run,
            &[&mixed, &by_q, &by_k, &by_v],
        );
    }
}
