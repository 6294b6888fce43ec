//! The CUDA kernels, run on the CPU by an emulated driver, against plain formulas in f64.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cuda_emulator::Emulator;
use cudarc::driver::{CudaContext, CudaModule, CudaSlice, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

/// A copy of the kernels under the name that the emulator looks for.
fn kernels() -> PathBuf {
    let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels"), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let to = to.join("policy-kernels");
    std::fs::create_dir_all(&to).unwrap();
    for (name, copy) in [
        ("common.cuh", "common.cuh"),
        ("attention.cuh", "attention.cuh"),
        ("logits.cuh", "logits.cuh"),
        ("policy.cu", "curvature.cu"),
    ] {
        std::fs::write(to.join(copy), std::fs::read(from.join(name)).unwrap()).unwrap();
    }
    to
}

fn emulator() -> Option<&'static Emulator> {
    static EMULATOR: OnceLock<Option<Emulator>> = OnceLock::new();
    EMULATOR.get_or_init(|| cuda_emulator::for_tests(&kernels())).as_ref()
}

struct Gpu {
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

impl Gpu {
    fn open() -> Option<Self> {
        emulator()?;
        let context = CudaContext::new(0).unwrap();
        let module = context.load_module(Ptx::from_src("policy")).unwrap();
        Some(Self { stream: context.default_stream(), module })
    }

    fn put<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    fn get<T: DeviceRepr + Clone + Default>(&self, slice: &CudaSlice<T>) -> Vec<T> {
        self.stream.clone_dtoh(slice).unwrap()
    }

    /// Memory that nobody wrote.
    fn fresh<T: DeviceRepr>(&self, len: usize) -> CudaSlice<T> {
        // SAFETY: the kernels under test write every element.
        unsafe { self.stream.alloc(len) }.unwrap()
    }
}

/// Launches a kernel with these arguments, each a reference to a value of the parameter's type.
macro_rules! launch {
    ($gpu:expr, $name:expr, $blocks:expr, $($argument:expr),*) => {{
        let function = $gpu.module.load_function($name).unwrap();
        let config = LaunchConfig { grid_dim: ($blocks as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the arguments are those of the kernel's parameters; the emulator checks addresses.
        unsafe { $gpu.stream.launch_builder(&function)$(.arg($argument))*.launch(config) }.unwrap();
    }};
}

fn wave(count: usize, phase: f64) -> Vec<f32> {
    (0..count).map(|i| (2.3 * (1.7 * i as f64 + phase).sin() + 0.9 * (0.013 * i as f64).cos()) as f32).collect()
}

fn assert_close(what: &str, actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let difference = (f64::from(*actual) - expected).abs();
        assert!(difference <= tolerance * expected.abs().max(1.0), "{what} [{i}]: {actual}, expected {expected}");
    }
}

/// `values` as bf16 bits, and what these stand for; the values are halves of small integers, which bf16 holds.
fn coarse(values: &[f32]) -> (Vec<u16>, Vec<f32>) {
    let coarse: Vec<f32> = values.iter().map(|value| (value * 8.0).round() / 8.0).collect();
    (coarse.iter().map(|value| (value.to_bits() >> 16) as u16).collect(), coarse)
}

fn widened(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(u32::from(*bits) << 16)).collect()
}

const TEMPERATURE: f64 = 0.7;

#[test]
fn scores_and_gradients_of_logits() {
    let Some(gpu) = Gpu::open() else { return };
    let (rows, vocab) = (3, 1000);
    let (logits, targets, seed) = (wave(rows * vocab, 0.4), [999u32, 0, 256], [0.3f32, 0.0, -2.0]);
    let (on_gpu, targets_on_gpu, seed_on_gpu) = (gpu.put(&logits), gpu.put(&targets), gpu.put(&seed));
    let (mut stats, mut gradient) = (gpu.fresh::<f32>(4 * rows), gpu.fresh::<f32>(rows * vocab));
    let width = vocab as u32;
    launch!(gpu, "logit_stats_f32", rows, &on_gpu, &targets_on_gpu, &mut stats, &width, &TEMPERATURE);
    launch!(
        gpu,
        "logit_gradient_f32",
        rows,
        &on_gpu,
        &targets_on_gpu,
        &seed_on_gpu,
        &mut gradient,
        &width,
        &TEMPERATURE
    );
    let (mut expected_stats, mut expected_gradient) = (Vec::new(), Vec::new());
    for (n, row) in logits.chunks_exact(vocab).enumerate() {
        let scaled: Vec<f64> = row.iter().map(|logit| f64::from(*logit) / TEMPERATURE).collect();
        let logsumexp = scaled.iter().map(|z| z.exp()).sum::<f64>().ln();
        let entropy: f64 = scaled.iter().map(|z| -(z - logsumexp).exp() * (z - logsumexp)).sum();
        let target = targets[n] as usize;
        expected_stats.extend([scaled[target] - logsumexp, logsumexp, entropy, f64::from(row[target])]);
        let weight = f64::from(seed[n]) / TEMPERATURE;
        let hit = |v: usize| f64::from(u8::from(v == target));
        expected_gradient.extend(scaled.iter().enumerate().map(|(v, z)| weight * (hit(v) - (z - logsumexp).exp())));
    }
    assert_close("logit_stats", &gpu.get(&stats), &expected_stats, 1e-5);
    assert_close("logit_gradient", &gpu.get(&gradient), &expected_gradient, 1e-6);
}

/// The ids of `row` from the largest logit down, the lower id first among equals.
fn ranked(row: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
    order
}

#[test]
fn the_largest_logits_in_order() {
    let Some(gpu) = Gpu::open() else { return };
    let (rows, vocab) = (5, 1500);
    let mut logits = wave(rows * vocab, 0.1);
    // Ties of all kinds: equal rows, few distinct values, both zeros, infinities.
    logits[vocab..2 * vocab].fill(-3.5);
    logits[2 * vocab..3 * vocab].iter_mut().enumerate().for_each(|(i, logit)| *logit = (i * 7 % 5) as f32 - 2.0);
    logits[3 * vocab..4 * vocab].iter_mut().enumerate().for_each(|(i, logit)| *logit = [0.0, -0.0][i % 2]);
    logits[4 * vocab + 7] = f32::INFINITY;
    logits[4 * vocab + 9] = f32::NEG_INFINITY;
    let on_gpu = gpu.put(&logits);
    for k in [1, 2, 50, 300, 600, 1000, 1024] {
        let mut ids = gpu.fresh::<u32>(rows * k);
        launch!(gpu, "top_ids_f32", rows, &on_gpu, &mut ids, &(vocab as u32), &(k as u32));
        for (ids, row) in gpu.get(&ids).chunks_exact(k).zip(logits.chunks_exact(vocab)) {
            assert_eq!(ids, &ranked(row)[..k]);
        }
    }
    let mut all = gpu.fresh::<u32>(5 * 9);
    launch!(gpu, "top_ids_f32", 5, &gpu.put(&logits[..45]), &mut all, &9u32, &9u32);
    for (ids, row) in gpu.get(&all).chunks_exact(9).zip(logits.chunks_exact(9)) {
        assert_eq!(ids, ranked(row));
    }
}

/// Inverts the cumulative distribution in the order of ids.
fn picked(row: &[f32], uniform: f64) -> u32 {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let weights: Vec<f64> = row.iter().map(|logit| ((f64::from(*logit) - largest) / TEMPERATURE).exp()).collect();
    let (target, mut sum) = (uniform * weights.iter().sum::<f64>(), 0.0);
    let reached = weights.iter().position(|weight| {
        sum += weight;
        sum > target
    });
    reached.unwrap_or_else(|| weights.iter().rposition(|weight| *weight > 0.0).unwrap()) as u32
}

#[test]
fn draws_invert_the_cumulative_distribution() {
    let Some(gpu) = Gpu::open() else { return };
    for vocab in [7, 256, 1500] {
        let rows = 40;
        let mut logits = wave(rows * vocab, 0.8);
        let mut uniform: Vec<f64> = (0..rows).map(|row| (0.377 * row as f64).fract()).collect();
        (uniform[1], uniform[2]) = (0.0, 1.0 - f64::EPSILON / 2.0);
        logits[2 * vocab - 1] = -1e30; // a weight of 0 at the end is never drawn
        logits[3 * vocab..3 * vocab + 3].fill(f32::NEG_INFINITY);
        logits[4 * vocab + 5] = f32::NAN;
        logits[5 * vocab + 3] = f32::INFINITY;
        logits[6 * vocab..7 * vocab].fill(f32::NEG_INFINITY);
        let mut ids = gpu.fresh::<u32>(rows);
        launch!(gpu, "draw_f32", rows, &gpu.put(&logits), &gpu.put(&uniform), &mut ids, &(vocab as u32), &TEMPERATURE);
        for (row, id) in gpu.get(&ids).into_iter().enumerate() {
            let expected =
                if (4..7).contains(&row) { u32::MAX } else { picked(&logits[row * vocab..][..vocab], uniform[row]) };
            assert_eq!(id, expected, "row {row} of {vocab} logits");
        }
    }
}

const SCALE: f32 = 0.3;

/// Weights `[B, H, S, S]` of causal attention.
fn attention(scores: &[f32], starts: &[u32], heads: usize, tokens: usize) -> Vec<f64> {
    let mut weights = vec![0.0; scores.len()];
    for line in 0..starts.len() * heads * tokens {
        let (start, query) = (starts[line / tokens / heads] as usize, line % tokens);
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
    let (starts, heads, tokens) = ([0u32, 3], 2u32, 300u32);
    let lines = starts.len() * (heads * tokens) as usize;
    let ((bits, scores), (grad_bits, grad)) =
        (coarse(&wave(lines * tokens as usize, 0.2)), coarse(&wave(lines * tokens as usize, 1.1)));
    let weights = attention(&scores, &starts, heads as usize, tokens as usize);
    let on_gpu = gpu.put(&starts);
    let (mut out, mut out_bf16) = (gpu.fresh::<f32>(scores.len()), gpu.fresh::<u16>(scores.len()));
    launch!(gpu, "causal_softmax_f32", lines, &gpu.put(&scores), &on_gpu, &mut out, &heads, &tokens, &SCALE);
    launch!(gpu, "causal_softmax_bf16", lines, &gpu.put(&bits), &on_gpu, &mut out_bf16, &heads, &tokens, &SCALE);
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
    launch!(gpu, name, lines, &out, &gpu.put(&grad), &on_gpu, &mut back, &heads, &tokens, &SCALE);
    assert_close(name, &gpu.get(&back), &gradient(&gpu.get(&out)), 1e-6);
    let name = "causal_softmax_backward_bf16";
    launch!(gpu, name, lines, &out_bf16, &gpu.put(&grad_bits), &on_gpu, &mut back_bf16, &heads, &tokens, &SCALE);
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
