//! Prediction of the shifts of the step that each subset of tokens proposes.

use crate::backend::cpu;
use crate::effect::{Effect, HostEffects};
use crate::proposal::Proposer;
use crate::semantics::{ObjectiveShift, PolicyShift};
use crate::shift::{Reaction, Shift};
use crate::subset::Subsets;
use crate::support::Pairs;
use crate::{Arrays, Error, cuda};

/// The predicted shifts of the step that each subset proposes.
///
/// With token weights `w` in the gradient and `y` in the averages (both `1 / N` in the paper):
/// `g = sum w A u ⊗ h`, `m_F = sum y ½ lr² s²`, `m_H = lr g . D + sum y ½ lr² A (s² - q)`.
pub(crate) enum Prediction<'a> {
    /// Single tokens. Their shifts are computed as they are read, because writing them down takes
    /// longer.
    Tokens {
        proposer: &'a Proposer<'a>,
        effects: Vec<Effect>,
        average: f64,
    },
    /// `[count]`: the subsets' shifts; 0 for an empty subset.
    Subsets(Vec<Shift>),
}

impl<'a> Prediction<'a> {
    pub fn new(proposer: &'a Proposer<'a>, subsets: &Subsets) -> Result<Self, Error> {
        let Proposer {
            step,
            supports,
            semantics,
            ..
        } = proposer;
        let weights = subsets.gradient_weights(step, supports, semantics.subset_weights);
        let effects = effects(proposer, subsets, &weights)?;
        let kind = semantics.curvature_average;
        if subsets.single {
            let average = Subsets::tokens(1).averages(step, supports, kind)[0];
            return Ok(Self::Tokens {
                proposer,
                effects,
                average,
            });
        }
        let mut slopes = vec![0.0; subsets.count];
        let mut squared_norms = vec![0.0; subsets.count];
        for (n, effect) in effects.iter().enumerate() {
            let Some(subset) = subsets.index(n) else {
                continue;
            };
            slopes[subset] += effect.slope;
            squared_norms[subset] += effect.squared_norm;
        }
        let mut shifts: Vec<Shift> = slopes
            .into_iter()
            .zip(squared_norms)
            .map(|(slope, squared_norm)| first_order(proposer, slope, squared_norm))
            .collect();
        let averages = subsets.averages(step, supports, kind);
        for (n, effect) in effects.iter().enumerate() {
            if let Some(subset) = subsets.index(n) {
                add(
                    proposer,
                    &mut shifts[subset],
                    effect.reaction,
                    supports.signals[n],
                    averages[n],
                );
            }
        }
        Ok(Self::Subsets(shifts))
    }

    /// Shifts of the step that a subset proposes.
    pub fn of(&self, subset: usize) -> Shift {
        match self {
            Self::Tokens {
                proposer,
                effects,
                average,
            } => {
                let Effect {
                    reaction,
                    slope,
                    squared_norm,
                } = effects[subset];
                let mut shift = first_order(proposer, slope, squared_norm);
                add(
                    proposer,
                    &mut shift,
                    reaction,
                    proposer.supports.signals[subset],
                    *average,
                );
                shift
            }
            Self::Subsets(shifts) => shifts[subset],
        }
    }
}

/// The part of a shift that follows from its subset's `g . D` and `‖D‖²`.
fn first_order(proposer: &Proposer, slope: f64, squared_norm: f64) -> Shift {
    let first_order = proposer.step.learning_rate * slope;
    let quadratic = proposer.semantics.objective_shift == ObjectiveShift::Quadratic;
    Shift {
        first_order,
        m_h: if quadratic { first_order } else { 0.0 },
        squared_norm,
        ..Shift::default()
    }
}

/// `[N]`: effects of the subsets' proposals on all tokens, computed on the batch's device.
fn effects(proposer: &Proposer, subsets: &Subsets, weights: &[f64]) -> Result<Vec<Effect>, Error> {
    let Proposer {
        step,
        supports,
        threads,
        ..
    } = proposer;
    let (pairs, arrays) = match (&supports.pairs, &step.batch.arrays) {
        (Pairs::Host(pairs), Arrays::Host(arrays)) => (pairs, arrays),
        (Pairs::Cuda(pairs), _) => return cuda::effects(proposer, pairs, subsets, weights),
        (Pairs::Host(_), Arrays::Cuda(_)) => {
            unreachable!("pairs are collected where their batch lies")
        }
    };
    let hidden = arrays.hidden;
    let width = step.batch.width;
    let positions = &supports.features[..];
    let features = cpu::Features {
        hidden,
        width,
        positions,
        threads: *threads,
    };
    let effects = HostEffects {
        proposer,
        pairs,
        features,
        source: &proposer.source.on_host()?,
    };
    Ok(if subsets.single {
        effects.of_tokens(weights)
    } else {
        effects.of_subsets(subsets, weights)
    })
}

/// Adds one token's contribution to its subset's shift.
fn add(proposer: &Proposer, shift: &mut Shift, reaction: Reaction, signal: f64, weight: f64) {
    let Reaction { s, q, kl, gain } = reaction;
    let rate = proposer.rate();
    let half = 0.5 * rate * rate;
    shift.kl += weight * kl;
    shift.surrogate += weight * signal * gain;
    shift.m_f += weight
        * match proposer.semantics.policy_shift {
            PolicyShift::Sampled => half * s * s,
            PolicyShift::Expected => half * q,
            PolicyShift::Kl => kl,
        };
    shift.m_h += weight
        * match proposer.semantics.objective_shift {
            ObjectiveShift::Quadratic => half * signal * (s * s - q),
            ObjectiveShift::Surrogate => signal * gain,
        };
}
