//! Prints the speed of the model's parts, and of each fused operation beside candle's own: `cargo bench -p host --bench model`.

mod common;

use candle_core::Device;
use common::{fresh, generate};
use host::adamw::AdamWConfig;
use host::model::{Policy, Sequences, Wants};
use host::optim::{Optimizer, OptimizerConfig};

fn policy(hidden: usize, layers: usize, vocab: usize) -> Policy {
    fresh(&format!(
        r#"{{"model_type": "qwen2", "vocab_size": {vocab}, "hidden_size": {hidden}, "intermediate_size": {},
        "num_hidden_layers": {layers}, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "initializer_range": 0.05}}"#,
        4 * hidden
    ))
}

fn least(work: impl FnMut()) -> f64 {
    common::least(std::env::var("REPEATS").map_or(7, |text| text.parse().unwrap()), work)
}

fn main() {
    parts();
    fused();
    products();
}

/// Prints products with a matrix as it is stored and in bf16, beside the matrix library's in f32.
fn products() {
    use candle_core::{DType, Tensor};
    use host::model::ops;

    let as_stored = |x: &Tensor, weight: &Tensor| -> candle_core::Result<Tensor> {
        let [product] = ops::products_of_few_rows(x, [weight])?;
        Ok(product)
    };
    for (inner, outputs) in [(512, 2048), (768, 3072), (768, 49_152)] {
        let weight = Tensor::randn(0f32, 1f32, (outputs, inner), &Device::Cpu).unwrap();
        let in_bf16 = weight.to_dtype(DType::BF16).unwrap();
        for rows in [1, 2, 8, 32, 64, 128, 256, 1024] {
            let x = Tensor::randn(0f32, 1f32, (rows, inner), &Device::Cpu).unwrap();
            let rounded = x.to_dtype(DType::BF16).unwrap();
            let gradient = Tensor::randn(0f32, 1f32, (rows, outputs), &Device::Cpu).unwrap();
            let gradient = gradient.to_dtype(DType::BF16).unwrap();
            let rate = |work: &dyn Fn() -> candle_core::Result<Tensor>| {
                (2 * rows * inner * outputs) as f64 / least(|| _ = work().unwrap()) / 1e9
            };
            println!(
                "{rows} x {inner} x {outputs}, GFLOP/s: the library {:.0}, as stored {:.0}; in bf16 as stored {:.0}, from f32 {:.0}, by rows {:.0}, by weights {:.0}",
                rate(&|| x.matmul(&weight.t()?)),
                rate(&|| as_stored(&x, &weight)),
                rate(&|| as_stored(&rounded, &in_bf16)),
                rate(&|| ops::product(&rounded, &weight.t()?, DType::BF16)),
                rate(&|| ops::product(&gradient, &weight, DType::BF16)),
                rate(&|| ops::product(&gradient.t()?, &rounded, DType::F32)),
            );
        }
    }
}

/// Prints generation, log-probabilities, gradients and the optimizer step at several sizes.
fn parts() {
    for (hidden, layers, batch, prompt, tokens) in
        [(64, 2, 48, 10, 16), (128, 4, 48, 10, 14), (128, 4, 96, 10, 14), (128, 4, 512, 10, 14), (128, 4, 32, 28, 100)]
    {
        let policy = policy(hidden, layers, 32);
        let prompts: Vec<Vec<u32>> = (0..batch).map(|row| vec![(row / 8) as u32 % 32; prompt]).collect();
        let generating = least(|| generate(&policy, &prompts, tokens));
        let ids = (0..batch * (prompt + tokens)).map(|i| (i * i % 31) as u32).collect();
        let numbers = Sequences::numbered(batch);
        let rows = Sequences {
            ids,
            starts: vec![0; batch],
            prompt_len: prompt,
            completion_len: tokens,
            lengths: vec![tokens; batch],
            numbers,
        };
        let wants = Wants { entropy: true, ..Wants::default() };
        let logps = least(|| _ = policy.forward_detached(&rows, 1.0).unwrap().outputs(&wants).unwrap());
        let d_logps = vec![0.01; batch * tokens];
        let training = least(|| {
            let forward = policy.forward(&rows, 1.0).unwrap();
            forward.outputs(&wants).unwrap();
            forward.backward(&d_logps).unwrap();
        });
        let gradients = policy.forward(&rows, 1.0).unwrap().backward(&d_logps).unwrap();
        let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(AdamWConfig::default())).unwrap();
        let stepping = least(|| _ = optimizer.step(policy.params(), &gradients, None, 1e-6, 1.0).unwrap());
        println!(
            "D {hidden}, {layers} layers, {batch} x ({prompt} + {tokens}): generate {:.1} ms ({:.0} tokens/s), \
             log-probabilities {:.1} ms, forward + backward {:.1} ms, optimizer {:.2} ms",
            1e3 * generating,
            (batch * tokens) as f64 / generating,
            1e3 * logps,
            1e3 * training,
            1e3 * stepping
        );
    }
}

/// Prints each fused operation, forward and backward, beside the same thing made of candle's differentiable operations.
fn fused() {
    use candle_core::{Tensor, Var};
    use candle_nn::ops::{rms_norm_slow, silu, softmax};
    use host::model::ops::{self, Frequencies, Rope, RopeTable};
    use std::sync::Arc;

    let random = |shape: &[usize]| Var::randn(0f32, 1f32, shape, &Device::Cpu).unwrap();
    // Both sides pass the same gradient back: ones.
    let print = |name: &str, fused: &dyn Fn() -> candle_core::Result<()>, plain: &dyn Fn() -> Tensor| {
        let fused = 1e3 * least(|| fused().unwrap());
        let plain = 1e3 * least(|| _ = plain().sum_all().unwrap().backward().unwrap());
        println!("{name}: fused {fused:.2} ms, plain {plain:.2} ms");
    };
    let (rows, tokens, heads, width) = (32, 64, 4, 32);
    let (x, weight) = (random(&[rows, tokens, 128]), random(&[128]));
    let norm = || {
        let y = ops::rms_norm(&x, &weight, 1e-6)?;
        ops::rms_norm_backward(&x, &weight, &y.ones_like()?, 1e-6, None).map(drop)
    };
    print("rms_norm", &norm, &|| rms_norm_slow(&x, &weight, 1e-6).unwrap());
    let add_bias = || ops::sum_rows(&ops::add_bias(&x, &weight)?.ones_like()?).map(drop);
    print("add_bias", &add_bias, &|| x.broadcast_add(&weight).unwrap());
    let (gate, up) = (random(&[rows, tokens, 512]), random(&[rows, tokens, 512]));
    let swiglu = || ops::swiglu_backward(&gate, &up, &ops::swiglu(&gate, &up)?.ones_like()?).map(drop);
    print("swiglu", &swiglu, &|| (silu(&gate).unwrap() * up.as_tensor()).unwrap());
    let (scores, starts) = (random(&[rows, heads, tokens, tokens]), ops::Starts::from(vec![0; rows]));
    let mask: Vec<f32> =
        (0..tokens * tokens).map(|i| if i % tokens > i / tokens { f32::NEG_INFINITY } else { 0.0 }).collect();
    let mask = Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu).unwrap();
    let causal_softmax = || {
        let probs = ops::causal_softmax(&scores, &starts, 0.2)?;
        ops::causal_softmax_backward(&probs, &probs.ones_like()?, &starts, 0.2).map(drop)
    };
    print("causal_softmax", &causal_softmax, &|| {
        softmax(&(scores.as_tensor() * 0.2).unwrap().broadcast_add(&mask).unwrap(), 3).unwrap()
    });
    let rope = Rope::new(Arc::new(RopeTable::new(tokens, &Frequencies::new(width, 1e4))), starts.clone(), 0);
    let (cos, sin) =
        (random(&[tokens, width / 2]).as_detached_tensor(), random(&[tokens, width / 2]).as_detached_tensor());
    let turned = || rope.backward(&rope.apply(&x, heads)?.ones_like()?).map(drop);
    print("rope", &turned, &|| {
        let x = x.reshape((rows, tokens, heads, width)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
        candle_nn::rotary_emb::rope_slow(&x, &cos, &sin).unwrap()
    });
}
