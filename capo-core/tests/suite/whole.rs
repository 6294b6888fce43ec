//! The model in `f64` over the whole `[V, D]` matrix under any of the switches that change what a
//! step does: every policy is computed before and after its logits have moved.

use std::ops::Range;

use capo_core::{
    CurvatureAverage, EmptyState, Feature, Granularity, ObjectiveShift, OptimizerKind,
    OptimizerModel, OutsideAction, PolicyShift, Probabilities, Reduction, RejectedBatch,
    SecondMoment, Semantics, StateDtype, Temperature, TokenGradient, UntouchedRows, Weights,
};

use super::fixture::{Batch, Dims};
use super::scene::Scene;

/// One token over the whole vocabulary.
pub struct Token {
    /// The rows that its gradient touches.
    pub support: Vec<bool>,
    pub pi: Vec<f64>,
    pub u: Vec<f64>,
    pub h: Vec<f64>,
    pub signal: f64,
    pub action: usize,
    /// One over the loss's temperature, where that is the model's.
    pub slope: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Shifts {
    pub m_f: f64,
    pub m_h: f64,
    pub kl: f64,
    pub surrogate: f64,
    /// `lr |D|` over the rows of the subset's tokens, without the decay of weights.
    pub norm: f64,
}

/// Tokens that make one step, and the completions they come from.
pub struct Subset {
    pub tokens: Vec<usize>,
    pub completions: Range<usize>,
    /// True if it is a token of its own, which is then a whole completion too: what the loss counts
    /// says nothing of it.
    single: bool,
}

/// The model: the switches, and dense moments.
pub struct Whole {
    pub semantics: Semantics,
    pub optimizer: Optimizer,
}

/// Dense Adam (or SGD, which has no state) over the whole matrix.
pub struct Optimizer {
    pub model: OptimizerModel,
    pub m: Vec<f64>,
    pub v: Vec<f64>,
    pub steps: i32,
}

impl Optimizer {
    pub fn new(model: OptimizerModel, dims: Dims) -> Self {
        let size = dims.3 * dims.4;
        Self {
            model,
            m: vec![0.0; size],
            v: vec![0.0; size],
            steps: 0,
        }
    }

    fn remembers(&self) -> bool {
        self.model.second_moment == SecondMoment::KeptAndRejected
    }

    fn direction(&self, gradient: &[f64]) -> Vec<f64> {
        let OptimizerModel {
            kind,
            beta1,
            beta2,
            eps,
            ..
        } = self.model;
        if kind == OptimizerKind::Sgd {
            return gradient.to_vec();
        }
        let t = self.steps + 1;
        let entry = |i: usize| {
            let m = (beta1 * self.m[i] + (1.0 - beta1) * gradient[i]) / (1.0 - beta1.powi(t));
            let v = (beta2 * self.v[i] + (1.0 - beta2) * gradient[i] * gradient[i])
                / (1.0 - beta2.powi(t));
            m / (v.sqrt() + eps)
        };
        (0..gradient.len()).map(entry).collect()
    }

    /// Takes in `gradient`; `everything` is that with nothing rejected, whose rest enters the
    /// second moment where that remembers it. Entries that are `frozen` rest.
    fn step(&mut self, gradient: &[f64], everything: &[f64], frozen: impl Fn(usize) -> bool) {
        let OptimizerModel { beta1, beta2, .. } = self.model;
        for (i, (g, all)) in gradient
            .iter()
            .zip(everything)
            .enumerate()
            .filter(|(i, _)| !frozen(*i))
        {
            let rejected = if self.remembers() { all - g } else { 0.0 };
            self.m[i] = beta1 * self.m[i] + (1.0 - beta1) * g;
            self.v[i] = beta2 * self.v[i] + (1.0 - beta2) * (g * g + rejected * rejected);
        }
        self.steps += 1;
    }
}

pub fn subsets(scene: &Scene, granularity: Granularity, token_mask: &[u8]) -> Vec<Subset> {
    let (span, positions) = (scene.batch.span(granularity).max(1), scene.batch.dims.1);
    let subset = |start: usize| Subset {
        tokens: (start..start + span)
            .filter(|&at| token_mask[at] != 0)
            .collect(),
        completions: start / positions..(start + span).div_ceil(positions),
        single: granularity == Granularity::Token,
    };
    (0..token_mask.len()).step_by(span).map(subset).collect()
}

/// Weights of the tokens in a loss of this reduction if they are the whole batch.
fn loss_weights(
    scene: &Scene,
    subset: &Subset,
    reduction: Reduction,
    counted: Option<&[u8]>,
) -> Vec<f64> {
    let positions = scene.batch.dims.1;
    let size = |completion: usize| match counted {
        Some(counted) if !subset.single => counted[completion * positions..][..positions]
            .iter()
            .filter(|&&x| x != 0)
            .count(),
        _ => subset
            .tokens
            .iter()
            .filter(|&&at| at / positions == completion)
            .count(),
    };
    let count = subset.completions.len();
    let weight = |at: usize| match reduction {
        Reduction::CompletionMean => 1.0 / (count * size(at / positions)) as f64,
        Reduction::FixedLength => 1.0 / (count * scene.max_completion_length) as f64,
        Reduction::CompletionSum => 1.0 / count as f64,
        Reduction::TokenMean => 1.0 / subset.completions.clone().map(size).sum::<usize>() as f64,
    };
    subset.tokens.iter().map(|&at| weight(at)).collect()
}

impl Whole {
    pub fn token(&self, scene: &Scene, at: usize) -> Token {
        let Semantics {
            feature,
            probabilities,
            temperature,
            outside_action,
            token_gradient,
            ..
        } = self.semantics;
        let Dims(_, _, k, width, vocab) = scene.batch.dims;
        let (t, slope) = match temperature {
            Temperature::Sampling => (f64::from(scene.policy.temperature), 1.0),
            Temperature::One => (1.0, 1.0),
            Temperature::Loss => (
                f64::from(scene.temperature),
                1.0 / f64::from(scene.temperature),
            ),
        };
        let action = scene.batch.action_ids[at] as usize;
        let columns = match (probabilities, scene.policy.top_k) {
            (Probabilities::TopK, Some(limit)) => limit.min(k),
            _ => k,
        };
        let mut support = vec![false; vocab];
        scene.batch.topk_ids[at * k..][..columns]
            .iter()
            .for_each(|&id| support[id as usize] = true);
        support[action] |= outside_action == OutsideAction::Add;
        let logits = &scene.logits[at * vocab..][..vocab];
        let held = |r: usize| probabilities == Probabilities::Full || support[r];
        let mass = |r: usize| {
            if held(r) {
                (f64::from(logits[r]) / t).exp()
            } else {
                0.0
            }
        };
        let total: f64 = (0..vocab).map(mass).sum();
        let mut pi: Vec<f64> = (0..vocab).map(|r| mass(r) / total).collect();
        if probabilities == Probabilities::Full && support.contains(&false) {
            round_as(
                &mut pi,
                &support,
                total / f64::from(scene.batch.logsumexp[at]).exp(),
            );
        }
        let own = |r: usize| f64::from(u8::from(r == action));
        let u = (0..vocab)
            .map(|r| if support[r] { own(r) - pi[r] } else { 0.0 })
            .collect();
        let signal = match token_gradient {
            TokenGradient::Advantage => f64::from(scene.batch.advantages[at]),
            TokenGradient::Loss => -f64::from(scene.derivatives[at]),
        };
        let next = feature == Feature::Next && !(at + 1).is_multiple_of(scene.batch.dims.1);
        let h = scene.batch.hidden[(at + usize::from(next)) * width..][..width]
            .iter()
            .map(|&x| f64::from(x))
            .collect();
        Token {
            support,
            pi,
            u,
            h,
            signal,
            action,
            slope,
        }
    }

    /// Weights of the tokens in the average of curvatures.
    pub fn averages(&self, scene: &Scene, subset: &Subset) -> Vec<f64> {
        match self.semantics.curvature_average {
            CurvatureAverage::TokenMean => {
                vec![1.0 / subset.tokens.len() as f64; subset.tokens.len()]
            }
            CurvatureAverage::CompletionMean => {
                loss_weights(scene, subset, Reduction::CompletionMean, None)
            }
            CurvatureAverage::Loss => {
                loss_weights(scene, subset, scene.reduction, scene.counted.as_deref())
            }
        }
    }

    fn tokens(&self, scene: &Scene, subset: &Subset) -> Vec<Token> {
        subset
            .tokens
            .iter()
            .map(|&at| self.token(scene, at))
            .collect()
    }

    /// Gradient of the objective, `[V, D]`; each token's is multiplied by its factor.
    fn gradient(
        &self,
        scene: &Scene,
        subset: &Subset,
        kind: Weights,
        factor: impl Fn(usize) -> f64,
    ) -> Vec<f64> {
        let tokens = self.tokens(scene, subset);
        let touching = |r: usize| tokens.iter().filter(|token| token.support[r]).count() as f64;
        let Dims(_, _, _, width, vocab) = scene.batch.dims;
        let mut gradient = vec![0.0; vocab * width];
        let weights = match kind {
            Weights::Loss => loss_weights(scene, subset, scene.reduction, scene.counted.as_deref()),
            Weights::TokenMean | Weights::RowMean => vec![1.0 / tokens.len() as f64; tokens.len()],
        };
        for ((token, &at), weight) in tokens.iter().zip(&subset.tokens).zip(weights) {
            for (r, row) in gradient
                .chunks_mut(width)
                .enumerate()
                .filter(|(r, _)| token.support[*r])
            {
                let weight = if kind == Weights::RowMean {
                    1.0 / touching(r)
                } else {
                    weight
                };
                let coefficient = weight * factor(at) * token.signal * token.slope * token.u[r];
                row.iter_mut()
                    .zip(&token.h)
                    .for_each(|(g, h)| *g += coefficient * h);
            }
        }
        gradient
    }

    pub fn shifts(&self, scene: &Scene, lr: f64, subset: &Subset) -> Shifts {
        if subset.tokens.is_empty() {
            return Shifts::default();
        }
        let gradient = self.gradient(scene, subset, self.semantics.subset_weights, |_| 1.0);
        let empty = self.optimizer.v.iter().all(|&v| v == 0.0);
        let raw = empty && self.semantics.empty_state == EmptyState::RawGradient;
        let adam = if raw {
            gradient.clone()
        } else {
            self.optimizer.direction(&gradient)
        };
        let adamw = self.optimizer.model.kind == OptimizerKind::Adam && !raw;
        let decay = if adamw {
            self.optimizer.model.weight_decay
        } else {
            0.0
        };
        let direction: Vec<f64> = adam
            .iter()
            .zip(&scene.weights)
            .map(|(d, w)| d - decay * w)
            .collect();
        let (averages, tokens) = (self.averages(scene, subset), self.tokens(scene, subset));
        let mut total = Shifts {
            norm: lr * norm(&adam, &tokens),
            ..Shifts::default()
        };
        if self.semantics.objective_shift == ObjectiveShift::Quadratic {
            total.m_h = lr
                * gradient
                    .iter()
                    .zip(&direction)
                    .map(|(g, d)| g * d)
                    .sum::<f64>();
        }
        for (token, weight) in tokens.iter().zip(averages) {
            self.add(&mut total, token, weight, &direction, lr);
        }
        total
    }

    /// Adds one token's part of the averages.
    fn add(&self, total: &mut Shifts, token: &Token, weight: f64, direction: &[f64], lr: f64) {
        let x = token.moves(direction, lr);
        let over_policy =
            |f: &dyn Fn(usize) -> f64| (0..x.len()).map(|r| token.pi[r] * f(r)).sum::<f64>();
        let s: f64 = token.u.iter().zip(&x).map(|(u, x)| u * x).sum();
        let mean = over_policy(&|r| x[r]);
        let q = over_policy(&|r| (x[r] - mean).powi(2));
        let moved = token.moved(&x);
        let kl = over_policy(&|r| {
            if token.pi[r] == 0.0 {
                0.0
            } else {
                (token.pi[r] / moved[r]).ln()
            }
        });
        let surrogate = token.signal * (moved[token.action] / token.pi[token.action] - 1.0);
        total.m_f += weight
            * match self.semantics.policy_shift {
                PolicyShift::Sampled => 0.5 * s * s,
                PolicyShift::Expected => 0.5 * q,
                PolicyShift::Kl => kl,
            };
        total.m_h += weight
            * match self.semantics.objective_shift {
                ObjectiveShift::Quadratic => 0.5 * token.signal * (s * s - q),
                ObjectiveShift::Surrogate => surrogate,
            };
        total.kl += weight * kl;
        total.surrogate += weight * surrogate;
    }

    /// Shifts of the subset that each token is in, `[B, T]`, 0 where the mask is 0.
    pub fn assess(&self, scene: &Scene, lr: f64, granularity: Granularity) -> Vec<Shifts> {
        let mask = &scene.batch.mask;
        let mut all = vec![Shifts::default(); mask.len()];
        for subset in subsets(scene, granularity, mask) {
            let shifts = self.shifts(scene, lr, &subset);
            subset.tokens.iter().for_each(|&at| all[at] = shifts);
        }
        all
    }

    pub fn batch_shift(&self, scene: &Scene, lr: f64, token_mask: &[u8]) -> Shifts {
        subsets(scene, Granularity::Batch, token_mask)
            .first()
            .map_or_else(Shifts::default, |all| self.shifts(scene, lr, all))
    }

    pub fn commit(&mut self, scene: &Scene, token_mask: &[u8]) {
        self.commit_weighted(
            scene,
            &token_mask
                .iter()
                .map(|&keep| f32::from(keep))
                .collect::<Vec<_>>(),
        );
    }

    pub fn commit_weighted(&mut self, scene: &Scene, factors: &[f32]) {
        let Semantics {
            rejected_batch,
            moment_input,
            untouched_rows,
            ..
        } = self.semantics;
        if rejected_batch == RejectedBatch::NoStep && factors.iter().all(|&factor| factor == 0.0) {
            return;
        }
        let token_mask: Vec<u8> = factors
            .iter()
            .map(|&factor| u8::from(factor > 0.0))
            .collect();
        let [kept, all] = [&token_mask, &scene.batch.mask]
            .map(|token_mask| subsets(scene, Granularity::Batch, token_mask).remove(0));
        let gradient = self.gradient(scene, &kept, moment_input, |at| f64::from(factors[at]));
        let everything = self.gradient(scene, &all, moment_input, |_| 1.0);
        let tokens = self.tokens(
            scene,
            if self.optimizer.remembers() {
                &all
            } else {
                &kept
            },
        );
        let touched = |i: usize| {
            tokens
                .iter()
                .any(|token| token.support[i / scene.batch.dims.3])
        };
        self.optimizer.step(&gradient, &everything, |i| {
            untouched_rows == UntouchedRows::Freeze && !touched(i)
        });
        if self.semantics.state_dtype == StateDtype::Bf16 {
            let Optimizer { m, v, .. } = &mut self.optimizer;
            m.iter_mut().chain(v).for_each(|x| *x = to_bf16(*x));
        }
    }
}

impl Token {
    /// Movements of the policy's logits; 0 for the rows that stand still.
    fn moves(&self, direction: &[f64], lr: f64) -> Vec<f64> {
        let dot = |row: &[f64]| row.iter().zip(&self.h).map(|(d, h)| d * h).sum::<f64>();
        let rows = direction.chunks(self.h.len()).zip(&self.support);
        rows.map(|(row, &inside)| {
            if inside {
                lr * self.slope * dot(row)
            } else {
                0.0
            }
        })
        .collect()
    }

    /// The policy after its logits moved by `x`.
    fn moved(&self, x: &[f64]) -> Vec<f64> {
        if x.iter().all(|&x| x == 0.0) {
            return self.pi.clone();
        }
        let masses: Vec<f64> = self.pi.iter().zip(x).map(|(pi, x)| pi * x.exp()).collect();
        let total: f64 = masses.iter().sum();
        masses.iter().map(|mass| mass / total).collect()
    }
}

/// The probabilities of the rows inside as the batch's `f32` logsumexp has them, `share` times the
/// true ones; the rows outside hold the rest.
fn round_as(pi: &mut [f64], support: &[bool], share: f64) {
    let inside: f64 = pi.iter().zip(support).filter(|x| *x.1).map(|x| x.0).sum();
    let outside = (1.0 - share * inside) / (1.0 - inside);
    pi.iter_mut()
        .zip(support)
        .for_each(|(pi, &inside)| *pi *= if inside { share } else { outside });
}

/// Frobenius norm over the rows that any of the tokens touches.
fn norm(direction: &[f64], tokens: &[Token]) -> f64 {
    let Some(first) = tokens.first() else {
        return 0.0;
    };
    let touched = |r: usize| tokens.iter().any(|token| token.support[r]);
    let rows = direction
        .chunks(first.h.len())
        .enumerate()
        .filter(|(r, _)| touched(*r));
    rows.map(|(_, row)| row.iter().map(|d| d * d).sum::<f64>())
        .sum::<f64>()
        .sqrt()
}

/// The nearest number of 8 significant bits, ties to the even one.
fn to_bf16(x: f64) -> f64 {
    let unit = (x.abs().log2().floor() - 7.0).exp2();
    if x == 0.0 {
        0.0
    } else {
        (x / unit).round_ties_even() * unit
    }
}

/// The moments that a trainer holds after the same steps: of the loss, whose gradient is minus the
/// objective's.
pub fn as_host_moments(optimizer: &Optimizer) -> (Vec<f32>, Vec<f32>) {
    let exp_avg = optimizer.m.iter().map(|&x| -x as f32).collect();
    (exp_avg, optimizer.v.iter().map(|&x| x as f32).collect())
}

/// True if some sampled token is not among its largest logits.
pub fn has_outside_actions(batch: &Batch) -> bool {
    let k = batch.dims.2;
    batch
        .action_ids
        .iter()
        .enumerate()
        .any(|(at, id)| !batch.topk_ids[at * k..][..k].contains(id))
}
