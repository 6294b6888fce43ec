//! Prediction of the shifts of the step that each subset of tokens proposes.

use crate::backend::cpu;
use crate::effect::{Effect, HostEffects};
use crate::proposal::Proposer;
use crate::semantics::{ObjectiveShift, PolicyShift};
use crate::shift::{Reaction, Shift};
use crate::subset::Subsets;
use crate::support::Pairs;
use crate::{Arrays, Error, cuda};

/// `[count]`: shifts of the step that each subset proposes; 0 for an empty subset.
///
/// With token weights `w` in the gradient and `y` in the averages (both `1 / N` in the paper): `g = sum w A u ⊗ h`,
/// `m_F = sum y ½ lr² s²`, `m_H = lr g . D + sum y ½ lr² A (s² - q)`.
pub(crate) fn shifts(proposer: &Proposer, subsets: &Subsets) -> Result<Vec<Shift>, Error> {
    let Proposer { step, supports, semantics, .. } = proposer;
    let weights = subsets.gradient_weights(step, supports, semantics.subset_weights);
    let averages = subsets.averages(step, supports, semantics.curvature_average);
    let effects = effects(proposer, subsets, &weights)?;
    let mut shifts = vec![Shift::default(); subsets.count];
    let mut slopes = vec![0.0; subsets.count];
    for (n, effect) in effects.iter().enumerate() {
        let Some(subset) = subsets.index(n) else { continue };
        slopes[subset] += effect.slope;
        shifts[subset].squared_norm += effect.squared_norm;
    }
    for (shift, slope) in shifts.iter_mut().zip(slopes) {
        shift.first_order = step.learning_rate * slope;
        if semantics.objective_shift == ObjectiveShift::Quadratic {
            shift.m_h = shift.first_order;
        }
    }
    for (n, effect) in effects.iter().enumerate() {
        if let Some(subset) = subsets.index(n) {
            add(proposer, &mut shifts[subset], effect.reaction, supports.signals[n], averages[n]);
        }
    }
    Ok(shifts)
}

/// `[N]`: effects of the subsets' proposals on all tokens, computed on the batch's device.
fn effects(proposer: &Proposer, subsets: &Subsets, weights: &[f64]) -> Result<Vec<Effect>, Error> {
    let Proposer { step, supports, threads, .. } = proposer;
    let (pairs, arrays) = match (&supports.pairs, &step.batch.arrays) {
        (Pairs::Host(pairs), Arrays::Host(arrays)) => (pairs, arrays),
        (Pairs::Cuda(pairs), _) => return cuda::effects(proposer, pairs, subsets, weights),
        (Pairs::Host(_), Arrays::Cuda(_)) => unreachable!("pairs are collected where their batch lies"),
    };
    let (hidden, width, positions) = (arrays.hidden, step.batch.width, &supports.features[..]);
    let features = cpu::Features { hidden, width, positions, threads: *threads };
    let effects = HostEffects { proposer, pairs, features, source: &proposer.source.on_host()? };
    Ok(if subsets.single { effects.of_tokens(weights) } else { effects.of_subsets(subsets, weights) })
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
