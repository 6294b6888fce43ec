//! Supports of a batch's tokens, collected on the batch's device.

#![allow(unsafe_code, reason = "kernel launches")]

use super::driver::{Argument, Device, Queue};
use super::pairs::{Hidden, Pairs};
use super::{Arrays, THREADS, launch, warps};
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
    let collector = Collector { step, arrays, softmax, semantics };
    let queue = || Device::open(arrays.device)?.queue(arrays.stream);
    let (pairs, flags, norms) = collector.collect(queue()?, tokens)?;
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
    let pairs = if kept.len() == tokens.len() { pairs } else { collector.collect(queue()?, &kept)?.0 };
    supports.pairs = support::Pairs::Cuda(Box::new(pairs));
    Ok(())
}

struct Collector<'a> {
    step: &'a Step<'a>,
    arrays: &'a Arrays<'a>,
    softmax: &'a Softmax,
    semantics: &'a Semantics,
}

impl Collector<'_> {
    /// The pairs of `tokens`, with a flag and `‖h‖²` for each token.
    fn collect(&self, queue: Queue, tokens: &[usize]) -> Result<(Pairs, Vec<u32>, Vec<f64>), Error> {
        let Self { step, arrays, softmax, semantics } = *self;
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
            spreads: Vec::new(),
            _held: None,
            queue,
        };
        let queue = &pairs.queue;
        let (spreads, flags) = (queue.buffer::<f64>(n)?, queue.buffer::<u32>(n)?);
        let Pairs { hidden, squared_norms, rows, logits, pi, u, tails, features, .. } = &pairs;
        let norms = hidden.of_dtype(["squared_norms_f32", "squared_norms_f16", "squared_norms_bf16"]);
        // SAFETY: the arguments are the kernels'. Positions and features are below B T, and `LastLayer::check` compared the
        // arrays' lengths with the dimensions. The device compares ids with V before it uses them as indices.
        unsafe {
            launch!(
                queue,
                "collect_supports",
                warps(n),
                THREADS,
                pairs.tokens,
                positions.address(),
                actions.address(),
                arrays.topk_ids.address(),
                arrays.topk_logits.address(),
                arrays.action_logits.address(),
                arrays.logsumexp.address(),
                vocab_size - 1,
                argument,
                rows.address(),
                logits.address(),
                pi.address(),
                u.address(),
                tails.address(),
                spreads.address(),
                flags.address(),
            )?;
            launch!(
                queue,
                norms,
                warps(n),
                THREADS,
                pairs.tokens,
                hidden.address,
                features.address(),
                hidden.width,
                hidden.vector,
                squared_norms.address(),
            )?;
        }
        let flags = queue.download(&flags, n)?;
        let norms = queue.download(squared_norms, n)?;
        let spreads = queue.download(&spreads, n)?;
        Ok((Pairs { spreads, ..pairs }, flags, norms))
    }
}
