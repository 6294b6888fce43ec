//! Supports of a batch's tokens, collected on the batch's device.

#![allow(unsafe_code, reason = "kernel launches")]

use std::sync::OnceLock;

use super::driver::{Argument, Device};
use super::pairs::{Hidden, Pairs};
use super::{Arrays, warps};
use crate::semantics::Semantics;
use crate::softmax::Softmax;
use crate::support::{self, Supports};
use crate::{Error, Step};

/// A policy in the kernels' layout.
#[repr(C)]
struct SoftmaxArgument {
    temperature: f64,
    columns: u32,
    k: u32,
    full: i32,
    add_action: i32,
}

impl Argument for SoftmaxArgument {}

/// Flags of a token, as `collect_supports` writes them.
const NOT_FINITE: u32 = 1;
const BAD_ID: u32 = 2;

/// Collects the supports of `tokens`; errors as in [`collect::supports`](crate::collect::supports).
pub(crate) fn collect(
    step: &Step,
    arrays: &Arrays,
    tokens: Vec<u32>,
    softmax: &Softmax,
    semantics: &Semantics,
) -> Result<Supports, Error> {
    let (supports, flags) = supports_of(step, arrays, tokens, softmax, semantics)?;
    if let Some(bad) = flags
        .iter()
        .position(|&flag| flag == BAD_ID)
        .map(|n| supports.position(n))
    {
        let queue = Device::open(arrays.device)?.queue(arrays.stream)?;
        step.batch.check_ids(
            bad,
            &queue.read(arrays.topk_ids, bad * step.batch.k, softmax.columns)?,
        )?;
    }
    let (finite, left_out): (Vec<usize>, Vec<usize>) = (0..supports.len()).partition(|&n| {
        let norm = supports.squared_norms[n];
        let signal = supports.signals[n];
        let advantage = step.advantages[supports.position(n)];
        flags[n] != NOT_FINITE && norm.is_finite() && signal.is_finite() && advantage.is_finite()
    });
    if left_out.is_empty() {
        return Ok(supports);
    }
    // Tokens with non-finite data are rare. If there are any, the other tokens are collected again,
    // without gaps.
    let kept = finite.into_iter().map(|n| supports.tokens[n]).collect();
    let not_finite = left_out.into_iter().map(|n| supports.position(n)).collect();
    Ok(Supports {
        not_finite,
        ..supports_of(step, arrays, kept, softmax, semantics)?.0
    })
}

/// The supports of `tokens`, as if all were finite, with a flag for each token.
fn supports_of(
    step: &Step,
    arrays: &Arrays,
    tokens: Vec<u32>,
    softmax: &Softmax,
    semantics: &Semantics,
) -> Result<(Supports, Vec<u32>), Error> {
    let queue = Device::open(arrays.device)?.queue(arrays.stream)?;
    let batch = &step.batch;
    let n = tokens.len();
    let vocab_size = u32::try_from(batch.vocab_size).map_err(|_| {
        Error::input(format!(
            "a vocabulary of {} is too large for a device",
            batch.vocab_size
        ))
    })?;
    let argument = SoftmaxArgument {
        temperature: softmax.temperature,
        columns: softmax.columns as u32,
        k: batch.k as u32,
        full: i32::from(softmax.full),
        add_action: i32::from(softmax.add_action),
    };
    let slots = n * (softmax.columns + 1);
    let mut features = Vec::with_capacity(n);
    let mut signals = Vec::with_capacity(n);
    let mut actions = Vec::with_capacity(n);
    for &token in &tokens {
        let token = token as usize;
        features.push(step.feature(token, semantics) as u32);
        signals.push(step.signal(token, semantics));
        actions.push(batch.action_ids[token]);
    }
    let actions = queue.upload(actions)?;
    let pairs = Pairs {
        hidden: Hidden::of(&arrays.hidden, batch.width),
        stride: softmax.columns as u32 + 1,
        tokens: n as u32,
        vocab_size,
        features: queue.upload(&features[..])?,
        squared_norms: queue.buffer(n)?,
        signals: queue.upload(&signals[..])?,
        tails: queue.buffer(n)?,
        rows: queue.buffer(slots)?,
        logits: queue.buffer(slots)?,
        pi: queue.buffer(slots)?,
        u: queue.buffer(slots)?,
        sorted: OnceLock::new(),
        spreads: Vec::new(),
        _held: None,
        queue,
    };
    let queue = &pairs.queue;
    let last_id = vocab_size - 1;
    let spreads = queue.buffer::<f64>(n)?;
    let flags = queue.buffer::<u32>(n)?;
    let positions = queue.upload(&tokens[..])?;
    let Pairs {
        hidden,
        tokens: count,
        squared_norms,
        rows,
        logits,
        pi,
        u,
        tails,
        features: of_tokens,
        ..
    } = &pairs;
    let Hidden {
        address,
        width,
        vector,
        ..
    } = hidden;
    let Arrays {
        topk_ids,
        topk_logits,
        action_logits,
        logsumexp,
        ..
    } = arrays;
    let norms = hidden.of_dtype([
        "squared_norms_f32",
        "squared_norms_f16",
        "squared_norms_bf16",
    ]);
    // SAFETY: the arguments are the kernels'. Positions and features are below B T, and
    // `LastLayer::check` compared the arrays' lengths with the dimensions. The device compares ids
    // with V before it uses them as indices.
    unsafe {
        let batch: [&dyn Argument; 7] = [
            count,
            &positions,
            &actions,
            topk_ids,
            topk_logits,
            action_logits,
            logsumexp,
        ];
        queue.launch(
            "collect_supports",
            warps(n),
            &[
                &batch, &last_id, &argument, rows, logits, pi, u, tails, &spreads, &flags,
            ],
        )?;
        queue.launch(
            norms,
            warps(n),
            &[count, address, of_tokens, width, vector, squared_norms],
        )?;
    }
    let flags = queue.download(&flags, n)?;
    let squared_norms = queue.download(squared_norms, n)?;
    let spreads = queue.download(&spreads, n)?;
    let pairs = support::Pairs::Cuda(Box::new(Pairs { spreads, ..pairs }));
    let empty = Supports::without_pairs(step, semantics, 0);
    Ok((
        Supports {
            tokens,
            features,
            squared_norms,
            signals,
            pairs,
            ..empty
        },
        flags,
    ))
}
