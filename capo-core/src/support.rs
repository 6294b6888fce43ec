//! Supports of a batch's tokens: the few vocabulary rows that a token's gradient touches, with their coefficients.

use std::ops::Range;

use crate::backend::{cpu, parallel};
use crate::semantics::{Feature, Semantics, Temperature};
use crate::softmax::Softmax;
use crate::{Arrays, Error, HostArrays, LastLayer, Step, cuda};

/// N tokens of a batch and the supports that their gradients live on.
///
/// A token's support is its top rows and, as [`OutsideAction`](crate::OutsideAction) says, the sampled one. With
/// `u = e_a - pi` its gradient is `A u ⊗ h` (paper, eq. 7).
#[derive(Debug)]
pub(crate) struct Supports {
    /// Flat positions `b * T + t`, `[N]`, ascending.
    pub tokens: Vec<usize>,
    /// Flat position of each token's feature, `[N]`.
    pub features: Vec<usize>,
    /// `‖h‖²` of each token's feature, `[N]`.
    pub squared_norms: Vec<f64>,
    /// What multiplies `u ⊗ h`: the advantage or its like, `[N]`.
    pub signals: Vec<f64>,
    /// Selected tokens that were left out because their data holds a NaN or an infinity.
    pub not_finite: Vec<usize>,
    /// `d (logits in the policy) / d (logits)`: 1, but for the loss's temperature.
    pub slope: f64,
    /// The (token, row) pairs, where the batch lies.
    pub pairs: Pairs,
}

/// Where the pairs of N tokens are.
#[derive(Debug)]
pub(crate) enum Pairs {
    Host(HostPairs),
    Cuda(Box<cuda::Pairs>),
}

/// The pairs of N tokens, one token after another, P in all.
#[derive(Debug, Default)]
pub(crate) struct HostPairs {
    /// Probability that is not in the token's rows, `[N]`.
    pub tails: Vec<f64>,
    /// Where each token's pairs end, `[N]`.
    ends: Vec<u32>,
    /// Vocabulary row of each pair, `[P]`.
    pub rows: Vec<u32>,
    /// Raw logit of each pair, `[P]`.
    pub logits: Vec<f32>,
    /// Probability of the row, `[P]`; with the tail they sum to 1 over a token's pairs.
    pub pi: Vec<f64>,
    /// `e_a - pi`, `[P]`; with minus the tail they sum to 0 over a token's pairs if the sampled token is one of them.
    pub u: Vec<f64>,
}

impl Supports {
    /// Collects the supports of the tokens with `selected[b * T + t] != 0`.
    ///
    /// An id outside the vocabulary is an error; a token with non-finite data is left out and noted.
    pub fn of(step: &Step, selected: &[u8], semantics: &Semantics, threads: usize) -> Result<Self, Error> {
        let tokens: Vec<usize> = (0..selected.len()).filter(|&token| selected[token] != 0).collect();
        let softmax = Softmax::new(step, semantics);
        let mut supports = Self::without_pairs(step, semantics, tokens.len());
        match &step.batch.arrays {
            Arrays::Host(arrays) => {
                let work = tokens.len() * (step.batch.width + 64 * softmax.columns);
                let collector = Collector { step, arrays, softmax: &softmax, semantics };
                let collect = |part: Range<usize>| collector.collect(&tokens[part]);
                for part in parallel::map_parts(threads, tokens.len(), work, collect) {
                    supports.append(part?);
                }
            }
            Arrays::Cuda(arrays) => cuda::collect(step, arrays, &tokens, &softmax, semantics, &mut supports)?,
        }
        Ok(supports)
    }

    fn without_pairs(step: &Step, semantics: &Semantics, tokens: usize) -> Self {
        let slope = match semantics.temperature {
            Temperature::Loss => 1.0 / f64::from(step.loss.temperature),
            Temperature::Sampling | Temperature::One => 1.0,
        };
        Self {
            tokens: Vec::with_capacity(tokens),
            features: Vec::with_capacity(tokens),
            squared_norms: Vec::with_capacity(tokens),
            signals: Vec::with_capacity(tokens),
            not_finite: Vec::new(),
            slope,
            pairs: Pairs::Host(HostPairs::default()),
        }
    }

    /// Takes up a token, whose data is finite.
    pub fn push(&mut self, token: usize, feature: usize, squared_norm: f64, signal: f64) {
        self.tokens.push(token);
        self.features.push(feature);
        self.squared_norms.push(squared_norm);
        self.signals.push(signal);
    }

    fn append(&mut self, other: Self) {
        self.tokens.extend(other.tokens);
        self.features.extend(other.features);
        self.squared_norms.extend(other.squared_norms);
        self.signals.extend(other.signals);
        self.not_finite.extend(other.not_finite);
        if let (Pairs::Host(pairs), Pairs::Host(more)) = (&mut self.pairs, other.pairs) {
            pairs.append(more);
        }
    }

    /// N, tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// `max(‖u‖², 2 max pi (1 - pi))` of the n-th token: what bounds its curvature, for `h` and `A` of size 1.
    pub fn spread(&self, n: usize) -> f64 {
        match &self.pairs {
            Pairs::Host(pairs) => pairs.spread(n),
            Pairs::Cuda(pairs) => pairs.spreads[n],
        }
    }
}

/// Flat position of the feature of the token at flat position `token`.
pub(crate) fn feature_of(token: usize, step: &Step, semantics: &Semantics) -> usize {
    match semantics.feature {
        Feature::Next if !(token + 1).is_multiple_of(step.batch.tokens) => token + 1,
        _ => token,
    }
}

/// Collects from host memory.
struct Collector<'a> {
    step: &'a Step<'a>,
    arrays: &'a HostArrays<'a>,
    softmax: &'a Softmax,
    semantics: &'a Semantics,
}

impl Collector<'_> {
    fn collect(&self, tokens: &[usize]) -> Result<Supports, Error> {
        let Self { step, arrays, softmax, semantics } = *self;
        let mut supports = Supports::without_pairs(step, semantics, tokens.len());
        let mut pairs = HostPairs::default();
        pairs.reserve(tokens.len() * (softmax.columns + 1));
        for &token in tokens {
            let (ids, logits) = self.top(token);
            check_ids(&step.batch, token, ids)?;
            let feature = feature_of(token, step, semantics);
            let norm = cpu::squared_norm(&arrays.hidden[feature * step.batch.width..][..step.batch.width]);
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

    /// Ids and logits of a token that take part.
    fn top(&self, token: usize) -> (&[u32], &[f32]) {
        let start = token * self.step.batch.k;
        let columns = self.softmax.columns;
        (&self.arrays.topk_ids[start..][..columns], &self.arrays.topk_logits[start..][..columns])
    }

    /// Adds a token's pairs.
    fn add(&self, pairs: &mut HostPairs, token: usize) {
        let (softmax, (ids, logits)) = (self.softmax, self.top(token));
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
        pairs.pi.extend(pairs.logits[start..].iter().map(|&x| f64::from(x)));
        let tail = if softmax.full {
            softmax.share(&mut pairs.pi[start..], f64::from(self.arrays.logsumexp[token]))
        } else {
            softmax.normalise(&mut pairs.pi[start..]);
            0.0
        };
        pairs.u.extend(pairs.pi[start..].iter().map(|p| -p));
        if let Some(chosen) = inside.or(added.then_some(ids.len())) {
            // 1 - p without cancellation, for tokens that were all but certain.
            pairs.u[start + chosen] = 0.0;
            pairs.u[start + chosen] = tail - pairs.u[start..].iter().sum::<f64>();
        }
        pairs.tails.push(tail);
        pairs.ends.push(pairs.rows.len() as u32);
    }
}

impl HostPairs {
    fn reserve(&mut self, pairs: usize) {
        self.rows.reserve(pairs);
        self.logits.reserve(pairs);
        self.pi.reserve(pairs);
        self.u.reserve(pairs);
    }

    fn append(&mut self, other: Self) {
        let shift = self.rows.len() as u32;
        self.tails.extend(other.tails);
        self.ends.extend(other.ends.into_iter().map(|end| shift + end));
        self.rows.extend(other.rows);
        self.logits.extend(other.logits);
        self.pi.extend(other.pi);
        self.u.extend(other.u);
    }

    /// Indices of the pairs of the n-th token.
    pub fn of(&self, n: usize) -> Range<usize> {
        let start = if n == 0 { 0 } else { self.ends[n - 1] };
        start as usize..self.ends[n] as usize
    }

    fn spread(&self, n: usize) -> f64 {
        let pairs = self.of(n);
        let realised: f64 = self.u[pairs.clone()].iter().map(|u| u * u).sum();
        let variance = self.pi[pairs].iter().fold(0.0f64, |most, p| most.max(2.0 * p * (1.0 - p)));
        realised.max(variance)
    }
}

/// Checks the ids of the token at flat position `token`.
pub(crate) fn check_ids(batch: &LastLayer, token: usize, ids: &[u32]) -> Result<(), Error> {
    let outside = |&&id: &&u32| id as usize >= batch.vocab_size;
    let Some(id) = ids.iter().chain([&batch.action_ids[token]]).find(outside) else { return Ok(()) };
    Err(Error::new(format!(
        "token {} of completion {} has id {id}, expected below the vocabulary size {} (check `topk_ids`, `action_ids`)",
        token % batch.tokens,
        token / batch.tokens,
        batch.vocab_size
    )))
}
