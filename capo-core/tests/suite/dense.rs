//! The model written out in `f64` over the whole `[V, D]` matrix, with every curvature matrix formed explicitly.

use capo_core::{OptimizerKind, OptimizerModel, Policy, SecondMoment};

use super::fixture::{Batch, Dims};

/// Policy of one token over the whole vocabulary, its `e_a - pi`, feature and advantage.
pub struct Token {
    pub pi: Vec<f64>,
    pub u: Vec<f64>,
    pub h: Vec<f64>,
    pub advantage: f64,
    pub action: usize,
}

pub fn token(batch: &Batch, policy: &Policy, at: usize) -> Token {
    let Dims(_, _, k, width, vocab) = batch.dims;
    let mut logits = vec![f64::NEG_INFINITY; vocab];
    for column in 0..policy.top_k.unwrap_or(k).min(k) {
        logits[batch.topk_ids[at * k + column] as usize] = f64::from(batch.topk_logits[at * k + column]);
    }
    let action = batch.action_ids[at] as usize;
    logits[action] = f64::from(batch.action_logits[at]);
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| ((x - largest) / f64::from(policy.temperature)).exp()).collect();
    let total: f64 = weights.iter().sum();
    let pi: Vec<f64> = weights.iter().map(|x| x / total).collect();
    let u = (0..vocab).map(|r| f64::from(u8::from(r == action)) - pi[r]).collect();
    let h = batch.hidden[at * width..][..width].iter().map(|&x| f64::from(x)).collect();
    Token { pi, u, h, advantage: f64::from(batch.advantages[at]), action }
}

/// `a ⊗ b`, flattened.
fn kron(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().flat_map(|x| b.iter().map(move |y| x * y)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `x' M x`, M given by its entries.
fn quadratic(x: &[f64], entry: impl Fn(usize, usize) -> f64) -> f64 {
    let n = x.len();
    (0..n).map(|i| (0..n).map(|j| x[i] * entry(i, j) * x[j]).sum::<f64>()).sum()
}

impl Token {
    pub fn gradient(&self) -> Vec<f64> {
        kron(&self.u, &self.h).iter().map(|x| self.advantage * x).collect()
    }

    /// `(m_F, m_H)` of a direction, from the explicit matrices F~ and H~ of this token and `g . D`.
    pub fn shifts(&self, direction: &[f64], lr: f64) -> (f64, f64) {
        let d = self.h.len();
        let outer = |i: usize, j: usize| self.h[i % d] * self.h[j % d];
        let realised = |i: usize, j: usize| self.u[i / d] * self.u[j / d];
        let fisher = |i: usize, j: usize| {
            let (r, c) = (i / d, j / d);
            f64::from(u8::from(r == c)) * self.pi[r] - self.pi[r] * self.pi[c]
        };
        let f = quadratic(direction, |i, j| realised(i, j) * outer(i, j));
        let h = quadratic(direction, |i, j| self.advantage * (realised(i, j) - fisher(i, j)) * outer(i, j));
        (0.5 * lr * lr * f, lr * dot(&self.gradient(), direction) + 0.5 * lr * lr * h)
    }
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
        Self { model, m: vec![0.0; size], v: vec![0.0; size], steps: 0 }
    }

    pub fn direction(&self, gradient: &[f64]) -> Vec<f64> {
        let OptimizerModel { kind, beta1, beta2, eps, .. } = self.model;
        if kind == OptimizerKind::Sgd {
            return gradient.to_vec();
        }
        let t = self.steps + 1;
        let entry = |i: usize| {
            let m = (beta1 * self.m[i] + (1.0 - beta1) * gradient[i]) / (1.0 - beta1.powi(t));
            let v = (beta2 * self.v[i] + (1.0 - beta2) * gradient[i] * gradient[i]) / (1.0 - beta2.powi(t));
            m / (v.sqrt() + eps)
        };
        (0..gradient.len()).map(entry).collect()
    }

    pub fn step(&mut self, gradient: &[f64]) {
        self.step_beside(gradient, gradient);
    }

    /// The same where `everything` is the gradient with nothing rejected: its rest enters the second moment, where that remembers it.
    pub fn step_beside(&mut self, gradient: &[f64], everything: &[f64]) {
        let OptimizerModel { beta1, beta2, second_moment, .. } = self.model;
        let remembers = second_moment == SecondMoment::KeptAndRejected;
        for (i, (g, all)) in gradient.iter().zip(everything).enumerate() {
            let rejected = if remembers { all - g } else { 0.0 };
            self.m[i] = beta1 * self.m[i] + (1.0 - beta1) * g;
            self.v[i] = beta2 * self.v[i] + (1.0 - beta2) * (g * g + rejected * rejected);
        }
        self.steps += 1;
    }

    /// `(m_F, m_H)` of every token's own step, `[B, T]` each, 0 where the mask is 0.
    pub fn assess(&self, batch: &Batch, policy: &Policy, lr: f64) -> (Vec<f64>, Vec<f64>) {
        let shifts = |at: usize| {
            if batch.mask[at] == 0 {
                return (0.0, 0.0);
            }
            let token = token(batch, policy, at);
            token.shifts(&self.direction(&token.gradient()), lr)
        };
        (0..batch.mask.len()).map(shifts).unzip()
    }

    /// `(m_F, m_H)` of the subset of `span` positions that each token is in, `[B, T]` each, 0 where the mask is 0.
    pub fn assess_subsets(&self, batch: &Batch, policy: &Policy, lr: f64, span: usize) -> (Vec<f64>, Vec<f64>) {
        let positions = batch.mask.len();
        let shift = |start: usize| {
            let inside = |at: usize| u8::from(at / span == start / span);
            let keep: Vec<u8> = (0..positions).map(|at| batch.mask[at] * inside(at)).collect();
            self.batch_shift(batch, policy, lr, &keep)
        };
        let subsets: Vec<(f64, f64)> = (0..positions).step_by(span).map(shift).collect();
        let valid = |at: usize| f64::from(batch.mask[at]);
        (0..positions).map(|at| (valid(at) * subsets[at / span].0, valid(at) * subsets[at / span].1)).unzip()
    }

    /// `(m_F, m_H)` of the step of the mean gradient of the tokens in `keep`.
    pub fn batch_shift(&self, batch: &Batch, policy: &Policy, lr: f64, keep: &[u8]) -> (f64, f64) {
        let Some((tokens, gradient)) = mean_gradient(batch, policy, keep) else { return (0.0, 0.0) };
        let direction = self.direction(&gradient);
        let shifts = tokens.iter().map(|token| token.shifts(&direction, lr));
        let total = shifts.fold((0.0, 0.0), |total, x| (total.0 + x.0, total.1 + x.1));
        // g . D of the batch is the mean of the tokens', so both shifts are means.
        (total.0 / tokens.len() as f64, total.1 / tokens.len() as f64)
    }

    pub fn commit(&mut self, batch: &Batch, policy: &Policy, keep: &[u8]) {
        if let Some((_, gradient)) = mean_gradient(batch, policy, keep) {
            let (_, everything) = mean_gradient(batch, policy, &batch.mask).unwrap();
            self.step_beside(&gradient, &everything);
        }
    }
}

/// The kept tokens and the mean of their gradients; `None` if there are none.
fn mean_gradient(batch: &Batch, policy: &Policy, keep: &[u8]) -> Option<(Vec<Token>, Vec<f64>)> {
    let tokens: Vec<Token> = (0..keep.len()).filter(|&at| keep[at] != 0).map(|at| token(batch, policy, at)).collect();
    let mut gradient = tokens.first()?.gradient();
    for token in &tokens[1..] {
        gradient.iter_mut().zip(token.gradient()).for_each(|(sum, g)| *sum += g);
    }
    gradient.iter_mut().for_each(|g| *g /= tokens.len() as f64);
    Some((tokens, gradient))
}
