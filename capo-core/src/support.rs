//! Supports of a batch's tokens: the few vocabulary rows that a token's gradient touches, with their coefficients.

use std::ops::Range;

use crate::semantics::{Semantics, Temperature};
use crate::{Step, cuda};

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
    /// Factor of `u ⊗ h`, `[N]`: the advantage or its like.
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
    pub ends: Vec<u32>,
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
    /// Without a token so far, and with room for `tokens`.
    pub fn without_pairs(step: &Step, semantics: &Semantics, tokens: usize) -> Self {
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

    /// Takes up the tokens of `other`, which come after.
    pub fn append(&mut self, other: Self) {
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

impl HostPairs {
    pub fn reserve(&mut self, pairs: usize) {
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
