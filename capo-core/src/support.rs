//! Supports of a batch's tokens: the few vocabulary rows that a token's gradient touches, with
//! their coefficients.

use std::ops::Range;

use crate::semantics::{Semantics, Temperature};
use crate::{Step, cuda};

/// N tokens of a batch and the supports of their gradients.
///
/// A token's support is its top rows and, depending on [`OutsideAction`](crate::OutsideAction), the
/// sampled row. With `u = e_a - pi` its gradient is `A u ⊗ h` (paper, eq. 7).
#[derive(Debug)]
pub(crate) struct Supports {
    /// `[N]`: flat positions `b * T + t`, ascending. `LastLayer::check` sees to it that they fit 32
    /// bits.
    pub tokens: Vec<u32>,
    /// `[N]`: flat position of each token's feature.
    pub features: Vec<u32>,
    /// `[N]`: `‖h‖²` of each token's feature.
    pub squared_norms: Vec<f64>,
    /// `[N]`: factor of `u ⊗ h`, the advantage or its replacement.
    pub signals: Vec<f64>,
    /// Selected tokens that were left out because their data holds a NaN or an infinity.
    pub not_finite: Vec<usize>,
    /// `d (logits in the policy) / d (logits)`: 1, except for the loss's temperature.
    pub slope: f64,
    /// The (token, row) pairs, on the batch's device.
    pub pairs: Pairs,
}

/// Location of the pairs of N tokens.
#[derive(Debug)]
pub(crate) enum Pairs {
    Host(HostPairs),
    Cuda(Box<cuda::Pairs>),
}

/// The pairs of N tokens, token by token; P in total.
#[derive(Debug, Default)]
pub(crate) struct HostPairs {
    /// `[N]`: probability outside the token's rows.
    pub tails: Vec<f64>,
    /// `[N]`: end of each token's pairs.
    pub ends: Vec<u32>,
    /// `[P]`: vocabulary row of each pair.
    pub rows: Vec<u32>,
    /// `[P]`: raw logit of each pair.
    pub logits: Vec<f32>,
    /// `[P]`: probability of the row; a token's entries and its tail sum to 1.
    pub pi: Vec<f64>,
    /// `[P]`: `e_a - pi`; a token's entries minus its tail sum to 0 if the sampled token is one of
    /// them.
    pub u: Vec<f64>,
}

impl Supports {
    /// Supports without tokens, with room for `tokens`.
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

    /// Adds a token with finite data.
    pub fn push(&mut self, token: usize, feature: usize, squared_norm: f64, signal: f64) {
        self.tokens.push(token as u32);
        self.features.push(feature as u32);
        self.squared_norms.push(squared_norm);
        self.signals.push(signal);
    }

    /// Appends the tokens of `other`, which come later.
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

    /// N: number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Flat position of the n-th token.
    pub fn position(&self, n: usize) -> usize {
        self.tokens[n] as usize
    }

    /// `max(‖u‖², 2 max pi (1 - pi))` of the n-th token, which bounds its curvature for `h` and `A`
    /// of size 1.
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
        self.ends
            .extend(other.ends.into_iter().map(|end| shift + end));
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
        let variance = self.pi[pairs]
            .iter()
            .fold(0.0f64, |most, p| most.max(2.0 * p * (1.0 - p)));
        realised.max(variance)
    }
}
