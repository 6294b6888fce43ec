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

/// Collects the supports of `tokens` into `supports`, which must be empty; errors as in
/// [`collect::supports`](crate::collect::supports).
pub(crate) fn collect(
    step: &Step,
    arrays: &Arrays,
    tokens: &[usize],
    softmax: &Softmax,
    semantics: &Semantics,
    supports: &mut Supports,
) -> Result<(), Error> {
    let collect = |tokens: &[usize]| pairs_of(step, arrays, tokens, softmax, semantics);
    let (pairs, flags, norms) = collect(tokens)?;
    if let Some(at) = flags.iter().position(|&flag| flag == BAD_ID) {
        let (start, columns) = (tokens[at] * step.batch.k, softmax.columns);
        step.batch.check_ids(tokens[at], &pairs.queue.read(arrays.topk_ids, start, columns)?)?;
    }
    let finite = |at: usize| {
        let token = tokens[at];
        let (signal, advantage) = (step.signal(token, semantics), step.advantages[token]);
        flags[at] != NOT_FINITE && norms[at].is_finite() && signal.is_finite() && advantage.is_finite()
    };
    let mut kept = Vec::with_capacity(tokens.len());
    for (at, &token) in tokens.iter().enumerate() {
        if finite(at) {
            kept.push(token);
            supports.push(token, step.feature(token, semantics), norms[at], step.signal(token, semantics));
        } else {
            supports.not_finite.push(token);
        }
    }
    // Tokens with non-finite data are rare. If there are any, the other tokens are collected again, without gaps.
    let pairs = if kept.len() == tokens.len() { pairs } else { collect(&kept)?.0 };
    supports.pairs = support::Pairs::Cuda(Box::new(pairs));
    Ok(())
}

/// The pairs of `tokens`, with a flag and `‖h‖²` for each token.
fn pairs_of(
    step: &Step,
    arrays: &Arrays,
    tokens: &[usize],
    softmax: &Softmax,
    semantics: &Semantics,
) -> Result<(Pairs, Vec<u32>, Vec<f64>), Error> {
    let queue = Device::open(arrays.device)?.queue(arrays.stream)?;
    let (batch, n) = (&step.batch, tokens.len());
    let too_many = || Error::new(format!("a vocabulary of {} is too large for a device", batch.vocab_size));
    let vocab_size = u32::try_from(batch.vocab_size).map_err(|_| too_many())?;
    let argument = SoftmaxArgument {
        temperature: softmax.temperature,
        columns: softmax.columns as u32,
        k: batch.k as u32,
        full: i32::from(softmax.full),
        add_action: i32::from(softmax.add_action),
    };
    let slots = n * (softmax.columns + 1);
    let list = |value: &dyn Fn(usize) -> u32| tokens.iter().map(|&token| value(token)).collect::<Vec<_>>();
    let positions = queue.upload(&list(&|token| token as u32))?;
    let actions = queue.upload(&list(&|token| batch.action_ids[token]))?;
    let features = queue.upload(&list(&|token| step.feature(token, semantics) as u32))?;
    let signals: Vec<f64> = tokens.iter().map(|&token| step.signal(token, semantics)).collect();
    let pairs = Pairs {
        hidden: Hidden::of(&arrays.hidden, batch.width),
        stride: softmax.columns as u32 + 1,
        tokens: n as u32,
        vocab_size,
        features,
        squared_norms: queue.buffer(n)?,
        signals: queue.upload(&signals)?,
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
    let (last_id, spreads, flags) = (vocab_size - 1, queue.buffer::<f64>(n)?, queue.buffer::<u32>(n)?);
    let Pairs { hidden, tokens, squared_norms, rows, logits, pi, u, tails, features, .. } = &pairs;
    let Hidden { address, width, vector, .. } = hidden;
    let Arrays { topk_ids, topk_logits, action_logits, logsumexp, .. } = arrays;
    let norms = hidden.of_dtype(["squared_norms_f32", "squared_norms_f16", "squared_norms_bf16"]);
    // SAFETY: the arguments are the kernels'. Positions and features are below B T, and `LastLayer::check` compared the
    // arrays' lengths with the dimensions. The device compares ids with V before it uses them as indices.
    unsafe {
        let batch: [&dyn Argument; 7] = [tokens, &positions, &actions, topk_ids, topk_logits, action_logits, logsumexp];
        queue.launch(
            "collect_supports",
            warps(n),
            &[&batch, &last_id, &argument, rows, logits, pi, u, tails, &spreads, &flags],
        )?;
        queue.launch(norms, warps(n), &[tokens, address, features, width, vector, squared_norms])?;
    }
    let flags = queue.download(&flags, n)?;
    let norms = queue.download(squared_norms, n)?;
    let spreads = queue.download(&spreads, n)?;
    Ok((Pairs { spreads, ..pairs }, flags, norms))
}
