//! The curvature model: propose -> shifts -> accept -> commit.

use crate::accept::Assessment;
use crate::backend::cpu;
use crate::moments::Moments;
use crate::optimizer::check_learning_rate;
use crate::shift::{Curvature, Shift};
use crate::support::Supports;
use crate::{Acceptance, Error, LastLayer, OptimizerModel, Policy, state};

/// Predicts how far each token's own step would move objective and policy, and keeps the tokens within bounds.
///
/// It holds the last layer's Adam moments. `assess` and `batch_shift` read them as they were before the batch; `commit`
/// advances them by one step.
#[derive(Debug, Clone)]
pub struct CurvatureModel {
    acceptance: Acceptance,
    moments: Moments,
}

/// Shifts of the one step that a whole batch proposes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BatchShift {
    /// Policy shift `m_F`, nats, averaged over tokens.
    pub m_f: f64,
    /// Objective shift `m_H`, reward units, averaged over tokens.
    pub m_h: f64,
    /// N, tokens averaged over; those with non-finite data are left out.
    pub tokens: usize,
}

impl CurvatureModel {
    /// A model without history. A threshold that is NaN or an empty range is an error.
    pub fn new(acceptance: Acceptance) -> Result<Self, Error> {
        acceptance.check()?;
        Ok(Self { acceptance, moments: Moments::default() })
    }

    /// Proposes a step for each token with `mask[b, t] != 0`, predicts its shifts and decides on it.
    ///
    /// `learning_rate` is that of the coming step, `advantages` and `mask` are `[B, T]`. Each token is treated as if its
    /// gradient alone were the batch's (paper, eq. 7 to 11). Shapes, ids or settings out of bounds are errors; a token
    /// with non-finite data is rejected and counted.
    pub fn assess(
        &self,
        batch: &LastLayer,
        policy: &Policy,
        optimizer: &OptimizerModel,
        learning_rate: f64,
        advantages: &[f32],
        mask: &[u8],
    ) -> Result<Assessment, Error> {
        check_learning_rate(learning_rate)?;
        let supports = self.supports(batch, policy, optimizer, advantages, ("mask", mask))?;
        let curvatures = self.token_curvatures(batch, optimizer, advantages, &supports);
        let mut assessment = Assessment::new(mask.len());
        for (&token, curvature) in supports.tokens.iter().zip(curvatures) {
            let shift = curvature.shift(learning_rate, f64::from(advantages[token]));
            assessment.judge(token, shift, &self.acceptance);
        }
        for &token in &supports.not_finite {
            assessment.refuse(token);
        }
        Ok(assessment)
    }

    /// Shifts of the step proposed by the mean gradient of the tokens with `keep[b, t] != 0`; all 0 if there are none.
    ///
    /// Gradient and curvatures are means over tokens (paper, eq. 7 to 10, estimated from the batch). Arguments and errors
    /// as for `assess`.
    pub fn batch_shift(
        &self,
        batch: &LastLayer,
        policy: &Policy,
        optimizer: &OptimizerModel,
        learning_rate: f64,
        advantages: &[f32],
        keep: &[u8],
    ) -> Result<BatchShift, Error> {
        check_learning_rate(learning_rate)?;
        let supports = self.supports(batch, policy, optimizer, advantages, ("keep", keep))?;
        let tokens = supports.len();
        let weight = 1.0 / tokens as f64;
        let coefficients = supports.coefficients(advantages, weight);
        let adam = optimizer.adam(self.moments.steps);
        let v = cpu::batch_projections(batch, &supports.by_row(), &coefficients, &self.moments, adam.as_ref());
        let mut total = Shift::default();
        for (&token, curvature) in supports.tokens.iter().zip(project(&supports, &v)) {
            let shift = curvature.shift(learning_rate, f64::from(advantages[token]));
            total.m_f += weight * shift.m_f;
            total.m_h += weight * shift.m_h;
        }
        Ok(BatchShift { m_f: total.m_f, m_h: total.m_h, tokens })
    }

    /// Takes the mean gradient of the finally accepted tokens, `keep[b, t] != 0`, into Adam's moments: one step.
    ///
    /// To be called after an optimizer step with the arguments of `assess`. With SGD, or when no token is left (those with
    /// non-finite data are skipped), nothing changes and no step is counted. Errors as for `assess`, with the state
    /// untouched.
    pub fn commit(
        &mut self,
        batch: &LastLayer,
        policy: &Policy,
        optimizer: &OptimizerModel,
        advantages: &[f32],
        keep: &[u8],
    ) -> Result<(), Error> {
        let supports = self.supports(batch, policy, optimizer, advantages, ("keep", keep))?;
        let Some(adam) = optimizer.adam(self.moments.steps) else { return Ok(()) };
        if supports.len() == 0 {
            return Ok(());
        }
        let coefficients = supports.coefficients(advantages, 1.0 / supports.len() as f64);
        let mut pairs = supports.by_row();
        // A zero gradient only decays a row, and decay is made up for whenever the row is next read.
        pairs.retain(|pair| coefficients[pair.index] != 0.0);
        (self.moments.vocab_size, self.moments.width) = (batch.vocab_size, batch.width);
        cpu::update_moments(batch, &pairs, &coefficients, &mut self.moments, &adam);
        self.moments.steps += 1;
        Ok(())
    }

    /// Rows of the last layer that have moments.
    pub fn rows(&self) -> usize {
        self.moments.rows.len()
    }

    /// Adam steps committed.
    pub fn steps(&self) -> u64 {
        self.moments.steps
    }

    /// The moments as bytes, little-endian on every machine; a model that loads them continues bit for bit.
    pub fn save(&self) -> Vec<u8> {
        state::encode(&self.moments)
    }

    /// Replaces the moments by saved ones.
    ///
    /// Bytes that are cut short, damaged, of another format version, or made with a vocabulary or width other than this
    /// model has seen are an error, and the model stays as it was. A model that has committed nothing yet compares with
    /// its first batch instead.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let loaded = state::decode(bytes)?;
        if self.moments.steps > 0 {
            loaded.check_dims(self.moments.vocab_size, self.moments.width, "this model has")?;
        }
        self.moments = loaded;
        Ok(())
    }

    /// Checks all inputs and collects the supports of the selected tokens.
    fn supports(
        &self,
        batch: &LastLayer,
        policy: &Policy,
        optimizer: &OptimizerModel,
        advantages: &[f32],
        (name, selected): (&str, &[u8]),
    ) -> Result<Supports, Error> {
        batch.check()?;
        batch.check_per_token("advantages", advantages.len())?;
        batch.check_per_token(name, selected.len())?;
        policy.check()?;
        optimizer.check()?;
        self.moments.check(batch)?;
        Supports::of(batch, policy, advantages, selected)
    }

    /// Curvature of each token along its own proposed direction, `[N]`.
    fn token_curvatures(
        &self,
        batch: &LastLayer,
        optimizer: &OptimizerModel,
        advantages: &[f32],
        supports: &Supports,
    ) -> Vec<Curvature> {
        let Some(adam) = optimizer.adam(self.moments.steps) else {
            let norms = cpu::squared_norms(batch, &supports.tokens);
            let along = |(n, norm): (usize, f64)| {
                let (pairs, advantage) = (supports.pairs(n), f64::from(advantages[supports.tokens[n]]));
                Curvature::along_gradient(&supports.pi[pairs.clone()], &supports.u[pairs], advantage, norm)
            };
            return norms.into_iter().enumerate().map(along).collect();
        };
        let coefficients = supports.coefficients(advantages, 1.0);
        let v = cpu::token_projections(batch, &supports.by_row(), &coefficients, &self.moments, &adam);
        project(supports, &v).collect()
    }
}

/// Curvature of each token from the projections of its pairs, `[N]` from `[P]`.
fn project<'a>(supports: &'a Supports, v: &'a [f64]) -> impl Iterator<Item = Curvature> + 'a {
    (0..supports.len()).map(|n| {
        let pairs = supports.pairs(n);
        Curvature::of(&supports.pi[pairs.clone()], &supports.u[pairs.clone()], &v[pairs])
    })
}
