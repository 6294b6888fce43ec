//! Kernels of what a layer does between its matrix products.

use super::gpu::{Gpu, assert_close, coarse, wave, widened};

const EPS: f32 = 1e-2;

/// Runs a kernel in both dtypes on coarse inputs, and compares with `expected`.
macro_rules! both {
    ($gpu:expr, $name:literal, $blocks:expr, $len:expr, [$($input:expr),*], $expected:expr, $($argument:expr),*) => {{
        let (mut out, mut out_bf16) = ($gpu.fresh::<f32>($len), $gpu.fresh::<u16>($len));
        launch!($gpu, concat!($name, "_f32"), $blocks, $(&$gpu.put(&coarse($input).1),)* &mut out, $($argument),*);
        launch!($gpu, concat!($name, "_bf16"), $blocks, $(&$gpu.put(&coarse($input).0),)* &mut out_bf16, $($argument),*);
        assert_close(concat!($name, "_f32"), &$gpu.get(&out), $expected, 1e-6);
        assert_close(concat!($name, "_bf16"), &widened(&$gpu.get(&out_bf16)), $expected, 4e-3);
    }};
}

fn wide(values: &[f32]) -> Vec<f64> {
    coarse(values).1.into_iter().map(f64::from).collect()
}

#[test]
fn norms_and_their_gradients() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [12usize, 300] {
        let (x, weight, grad) = (wave(3 * width, 0.2), wave(width, 0.7), wave(3 * width, 1.4));
        let (mut normed, mut dx, mut terms) = (Vec::new(), Vec::new(), Vec::new());
        let weights = wide(&weight);
        for (x, grad) in wide(&x).chunks_exact(width).zip(wide(&grad).chunks_exact(width)) {
            let square: f64 = x.iter().map(|x| x * x).sum();
            let r = 1.0 / (square / width as f64 + f64::from(EPS)).sqrt();
            let dot: f64 = (0..width).map(|i| grad[i] * weights[i] * x[i]).sum();
            normed.extend((0..width).map(|i| x[i] * r * weights[i]));
            dx.extend((0..width).map(|i| r * weights[i] * grad[i] - r.powi(3) * x[i] * dot / width as f64));
            terms.extend((0..width).map(|i| grad[i] * x[i] * r));
        }
        let both_gradients = [dx, terms].concat();
        both!(gpu, "rms_norm", 3, 3 * width, [&x, &weight], &normed, &(width as u32), &EPS);
        both!(gpu, "rms_norm_backward", 3, 6 * width, [&x, &weight, &grad], &both_gradients, &(width as u32), &EPS);
    }
}

#[test]
fn the_gate_and_its_gradients() {
    let Some(gpu) = Gpu::open() else { return };
    let count = 1000usize;
    let mut gate = wave(count, 0.3);
    (gate[0], gate[1]) = (-200.0, 200.0);
    let (up, grad) = (wave(count, 0.9), wave(count, 1.5));
    let (g, u, d) = (wide(&gate), wide(&up), wide(&grad));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let out: Vec<f64> = (0..count).map(|i| g[i] * sigmoid(g[i]) * u[i]).collect();
    let slope = |x: f64| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
    let by_gate = (0..count).map(|i| d[i] * u[i] * slope(g[i]));
    let gradients: Vec<f64> = by_gate.chain((0..count).map(|i| d[i] * g[i] * sigmoid(g[i]))).collect();
    let blocks = count.div_ceil(256);
    both!(gpu, "swiglu", blocks, count, [&gate, &up], &out, &(count as u64));
    both!(gpu, "swiglu_backward", blocks, 2 * count, [&gate, &up, &grad], &gradients, &(count as u64));
}

#[test]
fn rotations_there_and_back() {
    let Some(gpu) = Gpu::open() else { return };
    let (rows, tokens, heads, half) = (2usize, 5usize, 3usize, 4usize);
    let x = wave(rows * tokens * heads * 2 * half, 0.4);
    let angles: Vec<f64> = (0..rows * tokens * half).map(|i| 0.7 * i as f64).collect();
    let cosines: Vec<f32> = angles.iter().map(|angle| angle.cos() as f32).collect();
    let sines: Vec<f32> = angles.iter().map(|angle| angle.sin() as f32).collect();
    let at = |row: usize, token: usize, head: usize| ((row * tokens + token) * heads + head) * 2 * half;
    let turned_at = |row: usize, token: usize, head: usize| ((row * heads + head) * tokens + token) * 2 * half;
    let (mut there, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    let values = wide(&x);
    for (row, token, head, i) in (0..x.len() / 2)
        .map(|pair| (pair / half / heads / tokens, pair / half / heads % tokens, pair / half % heads, pair % half))
    {
        let angle = angles[(row * tokens + token) * half + i];
        let turn = |from: usize, out: &mut Vec<f64>, to: usize, angle: f64| {
            let (first, second) = (values[from + i], values[from + i + half]);
            out[to + i] = first * angle.cos() - second * angle.sin();
            out[to + i + half] = second * angle.cos() + first * angle.sin();
        };
        turn(at(row, token, head), &mut there, turned_at(row, token, head), angle);
        turn(turned_at(row, token, head), &mut back, at(row, token, head), -angle);
    }
    let (cosines, sines) = (gpu.put(&cosines), gpu.put(&sines));
    let [t, h, w] = [tokens, heads, half].map(|number| number as u32);
    let (pairs, blocks) = (x.len() as u64 / 2, x.len().div_ceil(512));
    for (inverse, expected) in [(0u32, &there), (1, &back)] {
        let (bits, floats) = coarse(&x);
        let (mut out, mut out_bf16) = (gpu.fresh::<f32>(x.len()), gpu.fresh::<u16>(x.len()));
        let (name, floats) = ("rotate_f32", gpu.put(&floats));
        launch!(gpu, name, blocks, &floats, &cosines, &sines, &mut out, &pairs, &t, &h, &w, &inverse);
        assert_close(name, &gpu.get(&out), expected, 1e-6);
        let (name, bits) = ("rotate_bf16", gpu.put(&bits));
        launch!(gpu, name, blocks, &bits, &cosines, &sines, &mut out_bf16, &pairs, &t, &h, &w, &inverse);
        assert_close(name, &widened(&gpu.get(&out_bf16)), expected, 4e-3);
    }
}

#[test]
fn rows_are_added_by_id() {
    let Some(gpu) = Gpu::open() else { return };
    let (vocab, width) = (6usize, 300usize);
    // Rows 1, 4 and 5 belong to id 2, rows 0 and 3 to id 5, row 2 to id 0.
    let (ids, offsets, order) = ([0u32, 2, 5], [0u32, 1, 4, 6], [2u32, 1, 4, 5, 0, 3]);
    let (start, rows) = (wave(vocab * width, 0.1), wave(6 * width, 0.6));
    let out = gpu.put(&start);
    let on_gpu = [gpu.put(&ids), gpu.put(&offsets), gpu.put(&order)];
    let [ids, offsets, order] = &on_gpu;
    launch!(gpu, "add_rows_f32", 3, &out, &gpu.put(&rows), ids, offsets, order, &(width as u32));
    let mut expected: Vec<f64> = start.iter().copied().map(f64::from).collect();
    for (row, id) in [5usize, 2, 0, 5, 2, 2].into_iter().enumerate() {
        for i in 0..width {
            expected[id * width + i] += f64::from(rows[row * width + i]);
        }
    }
    assert_close("add_rows_f32", &gpu.get(&out), &expected, 1e-6);
}
