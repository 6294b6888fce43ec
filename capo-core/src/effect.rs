//! Effects of proposals on each token, computed in host memory.

use std::ops::Range;

use crate::backend::{Projection, cpu, parallel};
use crate::gradient::{Gradients, Pair};
use crate::moments::HostSource;
use crate::optimizer::Adam;
use crate::proposal::Proposer;
use crate::shift::Reaction;
use crate::subset::Subsets;
use crate::support::HostPairs;

/// Number of feature entries (8 MiB) of the tokens whose proposals are processed together. They fit
/// in the shared cache while their rows are processed.
const BLOCK: usize = 1 << 21;

/// Effect of a subset's step on one token, and the token's contribution to that step. Kernels write
/// it, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub(crate) struct Effect {
    pub reaction: Reaction,
    /// The token's contribution to `g . D`.
    pub slope: f64,
    /// The token's contribution to `‖D‖²`.
    pub squared_norm: f64,
}

/// Computes effects in host memory.
#[derive(Clone, Copy)]
pub(crate) struct HostEffects<'a> {
    pub proposer: &'a Proposer<'a>,
    pub pairs: &'a HostPairs,
    pub features: cpu::Features<'a>,
    pub source: &'a HostSource<'a>,
}

impl HostEffects<'_> {
    /// `[N]`: effects on all tokens, where each token is a subset of its own.
    pub fn of_tokens(&self, weights: &[f64]) -> Vec<Effect> {
        let Proposer {
            step,
            supports,
            threads,
            ..
        } = self.proposer;
        let adam = self.proposer.adam();
        let work = self.pairs.rows.len() * if adam.is_some() { step.batch.width } else { 64 };
        parallel::map_parts(
            *threads,
            supports.len(),
            BLOCK / step.batch.width,
            work,
            |tokens| self.of_some_tokens(tokens, weights, adam.as_ref()),
        )
        .concat()
    }

    /// [`Self::of_tokens`] for some of the tokens.
    fn of_some_tokens(
        &self,
        tokens: Range<usize>,
        weights: &[f64],
        adam: Option<&Adam>,
    ) -> Vec<Effect> {
        let supports = self.proposer.supports;
        let (v, squared_norms) = match adam {
            Some(adam) => self.token_proposals(tokens.clone(), weights, adam),
            None => self.along_gradients(tokens.clone(), weights),
        };
        let mut v = &v[..];
        let mut effects = Vec::with_capacity(tokens.len());
        for (n, squared_norm) in tokens.zip(squared_norms) {
            let (own, rest) = v.split_at(self.pairs.of(n).len());
            v = rest;
            let reaction = self.reaction(n, own);
            let slope = weights[n] * supports.signals[n] * supports.slope * reaction.s;
            effects.push(Effect {
                reaction,
                slope,
                squared_norm,
            });
        }
        effects
    }

    /// Projections of some tokens' pairs on the direction of the token's own gradient, and each
    /// token's `‖D‖²`.
    fn token_proposals(
        &self,
        tokens: Range<usize>,
        weights: &[f64],
        adam: &Adam,
    ) -> (Vec<f64>, Vec<f64>) {
        let first = self.pairs.of(tokens.start).start;
        let start = tokens.start;
        let mut squared_norms = vec![0.0; tokens.len()];
        let gradients = Gradients::of_tokens(self.proposer.supports, self.pairs, tokens, weights);
        let projections = cpu::token_projections(self.features, &gradients, self.source, adam);
        let mut v = vec![0.0; gradients.pairs.len()];
        for (pair, projection) in gradients.pairs.iter().zip(&projections) {
            squared_norms[pair.token as usize - start] += projection.squared_norm;
            v[pair.index as usize - first] = self.with_decay(pair, projection);
        }
        (v, squared_norms)
    }

    /// Like `token_proposals`, where the direction is the gradient `w A u ⊗ h` itself, so
    /// `v = w A |h|² u`.
    fn along_gradients(&self, tokens: Range<usize>, weights: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let supports = self.proposer.supports;
        let mut v = Vec::new();
        let mut squared_norms = Vec::with_capacity(tokens.len());
        for n in tokens {
            let u = &self.pairs.u[self.pairs.of(n)];
            let scale = weights[n] * supports.signals[n] * supports.slope;
            let along = scale * supports.squared_norms[n];
            v.extend(u.iter().map(|u| along * u));
            squared_norms.push(scale * along * u.iter().map(|u| u * u).sum::<f64>());
        }
        (v, squared_norms)
    }

    /// `[N]`: effect on each token of the step that its subset proposes.
    pub fn of_subsets(&self, subsets: &Subsets, weights: &[f64]) -> Vec<Effect> {
        let Proposer {
            supports,
            semantics,
            ..
        } = self.proposer;
        let gradients = Gradients::of(
            supports,
            self.pairs,
            subsets,
            semantics.subset_weights,
            weights,
        );
        let adam = self.proposer.adam();
        let projections =
            cpu::subset_projections(self.features, &gradients, self.source, adam.as_ref());
        let mut v = vec![0.0; self.pairs.rows.len()];
        let mut slopes = vec![0.0; supports.len()];
        let mut squared_norms = vec![0.0; supports.len()];
        for ((pair, projection), coefficient) in gradients
            .pairs
            .iter()
            .zip(&projections)
            .zip(&gradients.coefficients)
        {
            let index = pair.index as usize;
            let token = pair.token as usize;
            v[index] = if adam.is_some() {
                self.with_decay(pair, projection)
            } else {
                projection.v
            };
            squared_norms[token] += projection.squared_norm;
            slopes[token] += coefficient * v[index];
        }
        let reactions = self
            .reactions(&v)
            .into_iter()
            .zip(slopes)
            .zip(squared_norms);
        reactions
            .map(|((reaction, slope), squared_norm)| Effect {
                reaction,
                slope,
                squared_norm,
            })
            .collect()
    }

    /// A projection with Adam's weight decay, under which a logit loses a fraction of itself.
    fn with_decay(&self, pair: &Pair, projection: &Projection) -> f64 {
        let decay = self.proposer.step.optimizer.logit_decay();
        projection.v - decay * f64::from(self.pairs.logits[pair.index as usize])
    }

    /// Reaction of token n's policy, from the projections `v` of its pairs.
    fn reaction(&self, n: usize, v: &[f64]) -> Reaction {
        let own = self.pairs.of(n);
        let pi = &self.pairs.pi[own.clone()];
        let u = &self.pairs.u[own];
        Reaction::of(pi, u, v, self.pairs.tails[n], self.proposer.rate())
    }

    /// `[N]`: reactions of the tokens' policies, from the projections `v`, `[P]`, of all pairs.
    fn reactions(&self, v: &[f64]) -> Vec<Reaction> {
        let Proposer {
            supports, threads, ..
        } = self.proposer;
        let work = 64 * v.len();
        parallel::map_parts(*threads, supports.len(), usize::MAX, work, |part| {
            part.map(|n| self.reaction(n, &v[self.pairs.of(n)]))
                .collect::<Vec<_>>()
        })
        .concat()
    }
}
