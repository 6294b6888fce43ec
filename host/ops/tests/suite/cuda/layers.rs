//! The operations of a layer, against the kernels of the CPU.

use std::sync::Arc;

use candle_core::Tensor;
use host_ops::{self as ops, Frequencies, Rope, RopeTable};

use super::gpu::{Bf16, Dtype, F32, Gpu, check, floats, wave};

const NULL: u64 = 0;

fn random(dtype: Dtype, shape: &[usize], phase: f64) -> Tensor {
    dtype.tensor(&wave(shape.iter().product(), phase), shape)
}

#[test]
fn operations_on_each_number() {
    let Some(gpu) = Gpu::open() else { return };
    for (dtype, rows, width) in [
        (F32, 3, 1028),
        (Bf16, 3, 1028),
        (F32, 5, 77),
        (Bf16, 5, 77),
        (Bf16, 1, 1),
    ] {
        let [x, y, d] = [0.1, 0.8, 1.7].map(|phase| random(dtype, &[rows, width], phase));
        let bias = random(dtype, &[width], 0.4);
        let (count, blocks) = ((rows * width) as u64, (rows * width).div_ceil(1024));
        let [on_x, on_y, on_d, on_bias] =
            [&x, &y, &d, &bias].map(|tensor| gpu.store(dtype, tensor));
        let sum = || {
            let mut out = gpu.room(dtype, rows * width);
            launch!(
                gpu,
                &dtype.of("add"),
                blocks,
                &on_x,
                &on_y,
                &mut out,
                &count
            );
            vec![gpu.load(dtype, &out)]
        };
        check("add", dtype, sum, &[&ops::add(&x, &y).unwrap()]);
        let biased = || {
            let mut out = gpu.room(dtype, rows * width);
            launch!(
                gpu,
                &dtype.of("add_bias"),
                blocks,
                &on_x,
                &on_bias,
                &mut out,
                &count,
                &(width as u32)
            );
            vec![gpu.load(dtype, &out)]
        };
        check(
            "add_bias",
            dtype,
            biased,
            &[&ops::add_bias(&x, &bias).unwrap()],
        );
        let gated = || {
            let mut out = gpu.room(dtype, rows * width);
            launch!(
                gpu,
                &dtype.of("swiglu"),
                blocks,
                &on_x,
                &on_y,
                &mut out,
                &count,
                &count,
                &count
            );
            vec![gpu.load(dtype, &out)]
        };
        check("swiglu", dtype, gated, &[&ops::swiglu(&x, &y).unwrap()]);
        let both = gpu.store(dtype, &Tensor::cat(&[&x, &y], 1).unwrap());
        let of_parts = || {
            let mut out = gpu.room(dtype, rows * width);
            let (wide, line) = (width as u64, 2 * width as u64);
            let up = both.slice(both.len() / (2 * rows)..);
            launch!(
                gpu,
                &dtype.of("swiglu"),
                blocks,
                &both,
                &up,
                &mut out,
                &count,
                &wide,
                &line
            );
            vec![gpu.load(dtype, &out)]
        };
        check(
            "swiglu of parts",
            dtype,
            of_parts,
            &[&ops::swiglu(&x, &y).unwrap()],
        );
        let backward = || {
            let (mut by_gate, mut by_up) =
                (gpu.room(dtype, rows * width), gpu.room(dtype, rows * width));
            let name = dtype.of("swiglu_backward");
            launch!(
                gpu,
                &name,
                blocks,
                &on_x,
                &on_y,
                &on_d,
                &mut by_gate,
                &mut by_up,
                &count
            );
            vec![gpu.load(dtype, &by_gate), gpu.load(dtype, &by_up)]
        };
        let (by_gate, by_up) = ops::swiglu_backward(&x, &y, &d).unwrap();
        check("swiglu_backward", dtype, backward, &[&by_gate, &by_up]);
    }
}

#[test]
fn norms() {
    let Some(gpu) = Gpu::open() else { return };
    let eps = 1e-5f32;
    // Heads, a warp's rows with and without runs of four, rows of a block, a row that is wider than
    // one round of either.
    for (dtype, rows, width) in [
        (Bf16, 70, 64),
        (F32, 70, 96),
        (Bf16, 33, 80),
        (F32, 9, 77),
        (Bf16, 9, 1023),
        (F32, 3, 1024),
        (F32, 3, 1028),
        (Bf16, 2, 1029),
        (Bf16, 1, 2304),
        (F32, 5, 1),
    ] {
        let [x, plus, d] = [0.1, 0.8, 1.7].map(|phase| random(dtype, &[rows, width], phase));
        let weight = random(dtype, &[width], 0.4);
        let [on_x, on_plus, on_d, on_weight] =
            [&x, &plus, &d, &weight].map(|tensor| gpu.store(dtype, tensor));
        let at_once = if width <= 1024 { 8 } else { 1 };
        let (count, wide, all) = (rows as u64, width as u32, rows * width);
        let forward = || {
            let (mut sum, mut out, mut of_sum) = (
                gpu.room(dtype, all),
                gpu.room(dtype, all),
                gpu.room(dtype, all),
            );
            let (name, blocks) = (dtype.of("rms_norm"), rows.div_ceil(at_once));
            launch!(
                gpu, &name, blocks, &on_x, &NULL, &on_weight, &NULL, &mut out, &count, &wide, &eps
            );
            launch!(
                gpu,
                &name,
                blocks,
                &on_x,
                &on_plus,
                &on_weight,
                &mut sum,
                &mut of_sum,
                &count,
                &wide,
                &eps
            );
            vec![
                gpu.load(dtype, &out),
                gpu.load(dtype, &sum),
                gpu.load(dtype, &of_sum),
            ]
        };
        let (sum, of_sum) = ops::add_rms_norm(&x, &plus, &weight, eps.into()).unwrap();
        let expected = [
            &ops::rms_norm(&x, &weight, eps.into()).unwrap(),
            &sum,
            &of_sum,
        ];
        check(
            &format!("rms_norm {rows} {width}"),
            dtype,
            forward,
            &expected,
        );
        // Fewer blocks than rows, so that a block has several.
        let blocks = rows.div_ceil(at_once).min(3);
        let backward = |plus: bool| {
            let (mut dx, mut partial) = (gpu.room(dtype, all), gpu.room(F32, blocks * width));
            let mut d_weight = gpu.room(dtype, width);
            let name = dtype.of("rms_norm_backward");
            if plus {
                launch!(
                    gpu,
                    &name,
                    blocks,
                    &on_x,
                    &on_weight,
                    &on_d,
                    &on_plus,
                    &mut dx,
                    &mut partial,
                    &count,
                    &wide,
                    &eps
                );
            } else {
                launch!(
                    gpu,
                    &name,
                    blocks,
                    &on_x,
                    &on_weight,
                    &on_d,
                    &NULL,
                    &mut dx,
                    &mut partial,
                    &count,
                    &wide,
                    &eps
                );
            }
            let name = if dtype == F32 {
                "sum_rows_f32"
            } else {
                "sum_rows_to_bf16"
            };
            let (columns, parts) = (width.div_ceil(32), blocks as u64);
            launch!(
                gpu,
                name,
                (columns, 1),
                &partial,
                &mut d_weight,
                &parts,
                &wide,
                &parts
            );
            vec![gpu.load(dtype, &dx), gpu.load(dtype, &d_weight)]
        };
        for (with, plus) in [(false, None), (true, Some(&plus))] {
            let (dx, d_weight) = ops::rms_norm_backward(&x, &weight, &d, eps.into(), plus).unwrap();
            check(
                &format!("rms_norm_backward {rows} {width}"),
                dtype,
                || backward(with),
                &[&dx, &d_weight],
            );
        }
    }
}

#[test]
fn sums_of_rows() {
    let Some(gpu) = Gpu::open() else { return };
    for (dtype, rows, width, length) in [
        (F32, 1, 1, 1),
        (F32, 300, 33, 128),
        (Bf16, 1000, 70, 96),
        (Bf16, 65, 32, 65),
    ] {
        let x = random(dtype, &[rows, width], 0.3);
        let on_x = gpu.store(dtype, &x);
        let parts = rows.div_ceil(length);
        let run = || {
            let mut out = gpu.room(F32, parts * width);
            let (name, grid) = (dtype.of("sum_rows"), (width.div_ceil(32), parts));
            launch!(
                gpu,
                &name,
                (grid.0, grid.1),
                &on_x,
                &mut out,
                &(rows as u64),
                &(width as u32),
                &(length as u64)
            );
            vec![gpu.load(F32, &out)]
        };
        let part = |part: usize| {
            ops::sum_rows(
                &x.narrow(0, part * length, length.min(rows - part * length))
                    .unwrap(),
            )
        };
        let expected: Vec<Tensor> = (0..parts).map(|number| part(number).unwrap()).collect();
        check(
            "sum_rows",
            dtype,
            run,
            &[&Tensor::stack(&expected, 0).unwrap()],
        );
    }
}

#[test]
fn heads_are_turned_and_moved() {
    let Some(gpu) = Gpu::open() else { return };
    let (starts, tokens, first_index) = ([0u32, 3, 9], 7usize, 2usize);
    for (dtype, heads, width) in [
        (F32, 3, 64),
        (Bf16, 3, 64),
        (F32, 2, 6),
        (Bf16, 1, 80),
        (Bf16, 5, 2),
    ] {
        let table = Arc::new(RopeTable::new(
            tokens + first_index,
            &Frequencies::new(width, 1e4),
        ));
        let rope = Rope::new(
            table.clone(),
            starts.map(|start| start as usize),
            first_index,
        );
        let frequencies: Vec<f32> = (0..width / 2)
            .map(|i| 1e4f64.powf(-2.0 * i as f64 / width as f64) as f32)
            .collect();
        let angles = || {
            (0..tokens + first_index).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f))
        };
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            angles().map(|angle| (angle.cos(), angle.sin())).unzip();
        let (on_cos, on_sin, on_starts) = (gpu.put(&cos), gpu.put(&sin), gpu.put(&starts));
        let x = random(dtype, &[3, tokens, heads * width], 0.2);
        let (on_x, all) = (gpu.store(dtype, &x), 3 * tokens * heads * width);
        let words = [
            3,
            tokens as u32,
            heads as u32,
            width as u32,
            first_index as u32,
        ];
        let [rows, s, h, w, first] = &words;
        let (name, blocks) = (dtype.of("move_heads"), (all / 2).div_ceil(1024));
        let (forth, back, plus, minus) = (1u32, 0u32, 1.0f32, -1.0f32);
        let run = || {
            let (mut turned, mut again) = (gpu.room(dtype, all), gpu.room(dtype, all));
            launch!(
                gpu,
                &name,
                blocks,
                &on_x,
                &on_cos,
                &on_sin,
                &on_starts,
                &mut turned,
                rows,
                s,
                h,
                w,
                first,
                &forth,
                &plus
            );
            launch!(
                gpu, &name, blocks, &turned, &on_cos, &on_sin, &on_starts, &mut again, rows, s, h,
                w, first, &back, &minus
            );
            vec![gpu.load(dtype, &turned), gpu.load(dtype, &again)]
        };
        let expected = rope.apply(&x, heads).unwrap();
        let rounded = dtype.tensor(&floats(&expected), expected.dims());
        check(
            &format!("rope {width}"),
            dtype,
            run,
            &[&expected, &rope.backward(&rounded).unwrap()],
        );
    }
}

#[test]
fn rows_are_added_by_id() {
    let Some(gpu) = Gpu::open() else { return };
    let ids = [5u32, 2, 0, 5, 1, 2, 5, 5];
    // The ids that occur, where the list of each begins, and the lists.
    let lists = [0u32, 1, 2, 5, 0, 1, 2, 4, 8, 2, 4, 1, 5, 0, 3, 6, 7];
    for (dtype, width) in [(F32, 3), (Bf16, 3), (F32, 300), (Bf16, 257)] {
        let (sums, rows) = (
            random(F32, &[7, width], 0.1),
            random(dtype, &[8, width], 0.6),
        );
        let (on_rows, on_lists) = (gpu.store(dtype, &rows), gpu.put(&lists));
        let run = || {
            let mut out = gpu.store(F32, &sums);
            let (name, columns) = (dtype.of("add_rows"), width.div_ceil(256));
            launch!(
                gpu,
                &name,
                (4, columns),
                &mut out,
                &on_rows,
                &on_lists,
                &4u32,
                &(width as u32)
            );
            vec![gpu.load(F32, &out)]
        };
        let expected = ops::add_rows(sums.copy().unwrap(), &ids, &rows, None).unwrap();
        check("add_rows", F32, run, &[&expected]);
        assert_eq!(
            run()[0],
            floats(&expected),
            "bit for bit, as the order is the same"
        );
    }
}
