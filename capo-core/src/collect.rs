//! Collects the supports of a batch's tokens on the batch's device.

use crate::backend::{cpu, parallel};
use crate::semantics::Semantics;
use crate::softmax::Softmax;
use crate::support::{HostPairs, Pairs, Supports};
use crate::{Arrays, Error, HostArrays, Step, cuda};

/// Collects the supports of the tokens with `selected[b * T + t] != 0`.
///
/// An id outside the vocabulary is an error. A token with non-finite data is left out and noted.
pub(crate) fn supports(
    step: &Step,
    selected: &[u8],
    semantics: &Semantics,
    threads: usize,
) -> Result<Supports, Error> {
    let tokens: Vec<u32> = (0..selected.len())
        .filter(|&token| selected[token] != 0)
        .map(|token| token as u32)
        .collect();
    let softmax = Softmax::new(step, semantics);
    let arrays = match &step.batch.arrays {
        Arrays::Host(arrays) => arrays,
        Arrays::Cuda(arrays) => return cuda::collect(step, arrays, tokens, &softmax, semantics),
    };
    let mut supports = Supports::without_pairs(step, semantics, tokens.len());
    let work = tokens.len() * (step.batch.width + 64 * softmax.columns);
    let collector = Collector {
        step,
        arrays,
        softmax: &softmax,
        semantics,
    };
    let parts = parallel::map_parts(threads, tokens.len(), usize::MAX, work, |part| {
        collector.collect(&tokens[part])
    });
    for part in parts {
        supports.append(part?);
    }
    Ok(supports)
}

/// Collects from host memory.
struct Collector<'a> {
    step: &'a Step<'a>,
    arrays: &'a HostArrays<'a>,
    softmax: &'a Softmax,
    semantics: &'a Semantics,
}

impl Collector<'_> {
    fn collect(&self, tokens: &[u32]) -> Result<Supports, Error> {
        let Self {
            step,
            arrays,
            softmax,
            semantics,
        } = *self;
        let mut supports = Supports::without_pairs(step, semantics, tokens.len());
        let mut pairs = HostPairs::default();
        pairs.reserve(tokens.len() * (softmax.columns + 1));
        for token in tokens.iter().map(|&token| token as usize) {
            let (ids, logits) = self.top(token);
            step.batch.check_ids(token, ids)?;
            let feature = step.feature(token, semantics);
            let norm =
                cpu::squared_norm(&arrays.hidden[feature * step.batch.width..][..step.batch.width]);
            let signal = step.signal(token, semantics);
            let finite = norm.is_finite()
                && signal.is_finite()
                && step.advantages[token].is_finite()
                && logits.iter().all(|x| x.is_finite())
                && (!softmax.add_action || arrays.action_logits[token].is_finite())
                && (!softmax.full || arrays.logsumexp[token].is_finite());
            if finite {
                supports.push(token, feature, norm, signal);
                self.add(&mut pairs, token);
            } else {
                supports.not_finite.push(token);
            }
        }
        supports.pairs = Pairs::Host(pairs);
        Ok(supports)
    }

    /// Ids and logits of a token's support.
    fn top(&self, token: usize) -> (&[u32], &[f32]) {
        let start = token * self.step.batch.k;
        let columns = self.softmax.columns;
        (
            &self.arrays.topk_ids[start..][..columns],
            &self.arrays.topk_logits[start..][..columns],
        )
    }

    /// Adds a token's pairs.
    fn add(&self, pairs: &mut HostPairs, token: usize) {
        let softmax = self.softmax;
        let (ids, logits) = self.top(token);
        let action = self.step.batch.action_ids[token];
        let start = pairs.rows.len();
        pairs.rows.extend_from_slice(ids);
        pairs.logits.extend_from_slice(logits);
        let inside = ids.iter().position(|&id| id == action);
        let added = inside.is_none() && softmax.add_action;
        if added {
            pairs.rows.push(action);
            pairs.logits.push(self.arrays.action_logits[token]);
        }
        pairs
            .pi
            .extend(pairs.logits[start..].iter().map(|&x| f64::from(x)));
        let tail = if softmax.full {
            softmax.share(
                &mut pairs.pi[start..],
                f64::from(self.arrays.logsumexp[token]),
            )
        } else {
            softmax.normalise(&mut pairs.pi[start..]);
            0.0
        };
        pairs.u.extend(pairs.pi[start..].iter().map(|p| -p));
        if let Some(chosen) = inside.or(added.then_some(ids.len())) {
            // 1 - p without cancellation, for tokens with a probability near 1.
            pairs.u[start + chosen] = 0.0;
            pairs.u[start + chosen] = tail - pairs.u[start..].iter().sum::<f64>();
        }
        pairs.tails.push(tail);
        pairs.ends.push(pairs.rows.len() as u32);
    }
}
