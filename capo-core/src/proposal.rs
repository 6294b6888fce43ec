//! The step that each subset of tokens proposes, and its shifts.

use std::ops::Range;

use crate::Step;
use crate::backend::{Projection, cpu, parallel};
use crate::gradient::{Gradients, Pair};
use crate::moments::Source;
use crate::optimizer::Adam;
use crate::semantics::{EmptyState, ObjectiveShift, PolicyShift, Semantics};
use crate::shift::{Reaction, Shift};
use crate::subset::Subsets;
use crate::support::Supports;

/// Entries of features, 8 MiB, of the tokens whose proposals are worked on together: they stay in the cache that cores
/// share while the rows that touch them come by.
const BLOCK: usize = 1 << 21;

/// How a model turns gradients into proposals.
pub(crate) struct Proposer<'a> {
    pub step: &'a Step<'a>,
    pub supports: &'a Supports,
    pub semantics: &'a Semantics,
    pub source: Source<'a>,
    pub threads: usize,
}

impl Proposer<'_> {
    /// Shifts of the step that each subset proposes, `[count]`; 0 for an empty one.
    ///
    /// With token weights `w` in the gradient and `y` in the averages, both `1 / N` in the paper: `g = sum w A u ⊗ h`,
    /// `m_F = sum y ½ lr² s²`, `m_H = lr g . D + sum y ½ lr² A (s² - q)`.
    pub fn shifts(&self, subsets: &Subsets) -> Vec<Shift> {
        let Self { step, supports, semantics, .. } = self;
        let weights = subsets.gradient_weights(step, supports, semantics.subset_weights);
        let averages = subsets.averages(step, supports, semantics.curvature_average);
        if subsets.single {
            return self.token_shifts(&weights, &averages);
        }
        let (v, mut shifts) = self.subset_proposals(subsets, &weights);
        for (n, reaction) in self.reactions(&v).into_iter().enumerate() {
            if let Some(subset) = subsets.index(n) {
                self.add(&mut shifts[subset], reaction, supports.signals[n], averages[n]);
            }
        }
        shifts
    }

    /// As `shifts` where each token is a subset of its own.
    fn token_shifts(&self, weights: &[f64], averages: &[f64]) -> Vec<Shift> {
        let Self { step, supports, .. } = self;
        let adam = self.adam();
        let block = |tokens: Range<usize>| {
            let start = tokens.start;
            let (v, mut shifts) = match &adam {
                Some(adam) => self.token_proposals(tokens, weights, adam),
                None => self.along_gradients(tokens, weights),
            };
            let mut v = &v[..];
            for (at, shift) in shifts.iter_mut().enumerate() {
                let n = start + at;
                let (own, rest) = v.split_at(supports.pairs(n).len());
                v = rest;
                let reaction = self.reaction(n, own);
                let slope = weights[n] * supports.signals[n] * supports.slope * reaction.s;
                self.start(shift, step.learning_rate * slope);
                self.add(shift, reaction, supports.signals[n], averages[n]);
            }
            shifts
        };
        let work = supports.rows.len() * if adam.is_some() { step.batch.width } else { 64 };
        parallel::map_blocks(self.threads, supports.len(), BLOCK / step.batch.width, work, block).concat()
    }

    /// Adds one token's part to its subset's shift.
    fn add(&self, shift: &mut Shift, reaction: Reaction, signal: f64, weight: f64) {
        let Reaction { s, q, kl, gain } = reaction;
        let rate = self.step.learning_rate * self.supports.slope;
        let half = 0.5 * rate * rate;
        shift.kl += weight * kl;
        shift.surrogate += weight * signal * gain;
        shift.m_f += weight
            * match self.semantics.policy_shift {
                PolicyShift::Sampled => half * s * s,
                PolicyShift::Expected => half * q,
                PolicyShift::Kl => kl,
            };
        shift.m_h += weight
            * match self.semantics.objective_shift {
                ObjectiveShift::Quadratic => half * signal * (s * s - q),
                ObjectiveShift::Surrogate => signal * gain,
            };
    }

    /// Adam as it proposes; `None` where the direction is the gradient.
    fn adam(&self) -> Option<Adam> {
        let raw = self.semantics.empty_state == EmptyState::RawGradient && self.source.is_empty();
        let adam = self.step.optimizer.adam(self.source.steps(), self.semantics.untouched_rows);
        adam.filter(|_| !raw)
    }

    fn features(&self) -> cpu::Features<'_> {
        cpu::Features { batch: &self.step.batch, positions: &self.supports.features, threads: self.threads }
    }

    /// Projections of the pairs of some tokens on the direction of their token's own gradient, and each token's `‖D‖²`.
    fn token_proposals(&self, tokens: Range<usize>, weights: &[f64], adam: &Adam) -> (Vec<f64>, Vec<Shift>) {
        let (first, start) = (self.supports.pairs(tokens.start).start, tokens.start);
        let mut shifts = vec![Shift::default(); tokens.len()];
        let gradients = Gradients::of_tokens(self.supports, tokens, weights);
        let projections = cpu::token_projections(self.features(), &gradients, &self.source, adam);
        let mut v = vec![0.0; gradients.pairs.len()];
        for (pair, projection) in gradients.pairs.iter().zip(&projections) {
            shifts[pair.token as usize - start].squared_norm += projection.squared_norm;
            v[pair.index as usize - first] = self.with_decay(pair, projection);
        }
        (v, shifts)
    }

    /// As `token_proposals` where the direction is the gradient `w A u ⊗ h` itself, so that `v = w A |h|² u`.
    fn along_gradients(&self, tokens: Range<usize>, weights: &[f64]) -> (Vec<f64>, Vec<Shift>) {
        let supports = self.supports;
        let mut v = Vec::new();
        let along = |n: usize| {
            let u = &supports.u[supports.pairs(n)];
            let scale = weights[n] * supports.signals[n] * supports.slope;
            let along = scale * supports.squared_norms[n];
            v.extend(u.iter().map(|u| along * u));
            let squared_norm = scale * along * u.iter().map(|u| u * u).sum::<f64>();
            Shift { squared_norm, ..Shift::default() }
        };
        let shifts = tokens.map(along).collect();
        (v, shifts)
    }

    /// Projections of every pair on the direction of its subset's gradient, `[P]`, and each subset's `lr g . D`.
    fn subset_proposals(&self, subsets: &Subsets, weights: &[f64]) -> (Vec<f64>, Vec<Shift>) {
        let Self { step, supports, semantics, .. } = self;
        let gradients = Gradients::of(supports, subsets, semantics.subset_weights, weights);
        let adam = self.adam();
        let projections = cpu::subset_projections(self.features(), &gradients, &self.source, adam.as_ref());
        let mut v = vec![0.0; supports.rows.len()];
        let mut shifts = vec![Shift::default(); subsets.count];
        let mut slopes = vec![0.0; subsets.count];
        for ((pair, projection), coefficient) in gradients.pairs.iter().zip(&projections).zip(&gradients.coefficients) {
            let (index, subset) = (pair.index as usize, pair.subset as usize);
            v[index] = if adam.is_some() { self.with_decay(pair, projection) } else { projection.v };
            shifts[subset].squared_norm += projection.squared_norm;
            slopes[subset] += coefficient * v[index];
        }
        for (shift, slope) in shifts.iter_mut().zip(slopes) {
            self.start(shift, step.learning_rate * slope);
        }
        (v, shifts)
    }

    /// Begins a shift with its first-order term.
    fn start(&self, shift: &mut Shift, first_order: f64) {
        shift.first_order = first_order;
        if self.semantics.objective_shift == ObjectiveShift::Quadratic {
            shift.m_h = first_order;
        }
    }

    /// A projection with the decay of weights that comes with Adam: a logit loses a share of itself.
    fn with_decay(&self, pair: &Pair, projection: &Projection) -> f64 {
        projection.v - self.step.optimizer.logit_decay() * f64::from(self.supports.logits[pair.index as usize])
    }

    /// What token n's policy does, from the projections of its pairs.
    fn reaction(&self, n: usize, v: &[f64]) -> Reaction {
        let Self { step, supports, .. } = self;
        let pairs = supports.pairs(n);
        let (pi, u) = (&supports.pi[pairs.clone()], &supports.u[pairs]);
        Reaction::of(pi, u, v, supports.tails[n], step.learning_rate * supports.slope)
    }

    /// What each token's policy does, `[N]`, from the projections of all pairs, `[P]`.
    fn reactions(&self, v: &[f64]) -> Vec<Reaction> {
        let react = |n: usize| self.reaction(n, &v[self.supports.pairs(n)]);
        let part = |part: Range<usize>| part.map(react).collect::<Vec<_>>();
        parallel::map_parts(self.threads, self.supports.len(), 64 * v.len(), part).concat()
    }
}
