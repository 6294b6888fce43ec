//! The curvature model: propose -> shifts -> accept -> commit.

use crate::accept::Assessment;
use crate::backend::cpu;
use crate::moments::Moments;
use crate::semantics::{RejectedBatch, Semantics, UntouchedRows};
use crate::subset::subset_shift;
use crate::support::Supports;
use crate::{Acceptance, Error, Granularity, Step, state};

/// Predicts how far the step of each subset of tokens would move objective and policy, and keeps the subsets within
/// bounds.
///
/// It holds the last layer's Adam moments. `assess` and `batch_shift` read them as they were before the batch; `commit`
/// advances them by one step.
#[derive(Debug, Clone)]
pub struct CurvatureModel {
    acceptance: Acceptance,
    granularity: Granularity,
    semantics: Semantics,
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
    /// A model without history. A threshold that is NaN, an empty range, or groups in the authors' semantics are errors.
    pub fn new(acceptance: Acceptance, granularity: Granularity, semantics: Semantics) -> Result<Self, Error> {
        acceptance.check()?;
        if granularity == Granularity::Group && semantics == Semantics::AUTHORS {
            return Err(Error::new(
                "`granularity` is `group`, which the authors' semantics do not have (choose `token`, `completion` or `batch`, or the paper's semantics)",
            ));
        }
        Ok(Self { acceptance, granularity, semantics, moments: Moments::default() })
    }

    /// Proposes a step for each subset of the tokens with `mask[b, t] != 0`, predicts its shifts and decides on it.
    ///
    /// `mask` is `[B, T]`. Each subset is treated as if the mean of its tokens' gradients alone were the batch's gradient
    /// (paper, eq. 7 to 11), whatever else is in the batch; curvatures are means over its tokens too. [`Semantics`] says
    /// which means. Shapes, ids or
    /// settings out of bounds are errors. A token with non-finite data is left out of its subset, rejected and counted.
    pub fn assess(&self, step: &Step, mask: &[u8]) -> Result<Assessment, Error> {
        self.check(step, "mask", mask)?;
        let mut assessment = Assessment::new(mask.len());
        for positions in self.granularity.spans(&step.batch) {
            let supports = Supports::of(step, mask, positions, &self.semantics)?;
            let shifts = self.granularity.shifts(step, &supports, &self.moments, &self.semantics);
            for (&token, shift) in supports.tokens.iter().zip(shifts) {
                assessment.judge(token, shift, &self.acceptance);
            }
            for &token in &supports.not_finite {
                assessment.refuse(token);
            }
        }
        Ok(assessment)
    }

    /// Shifts of the step proposed by the mean gradient of the tokens with `keep[b, t] != 0`; all 0 if there are none.
    ///
    /// These are the shifts that `assess` would find for the batch as one subset, at whatever granularity the model has.
    /// Errors as for `assess`.
    pub fn batch_shift(&self, step: &Step, keep: &[u8]) -> Result<BatchShift, Error> {
        self.check(step, "keep", keep)?;
        let supports = Supports::of(step, keep, 0..keep.len(), &self.semantics)?;
        let shift = subset_shift(step, &supports, &self.moments, &self.semantics);
        Ok(BatchShift { m_f: shift.m_f, m_h: shift.m_h, tokens: supports.len() })
    }

    /// Takes the mean gradient of the finally accepted tokens, `keep[b, t] != 0`, into Adam's moments: one step.
    ///
    /// To be called after an optimizer step, with the `step` of `assess`. With SGD nothing changes. When no token is left
    /// (those with non-finite data are skipped), [`RejectedBatch`] says whether a step is counted. Errors as for `assess`,
    /// with the state untouched.
    pub fn commit(&mut self, step: &Step, keep: &[u8]) -> Result<(), Error> {
        self.check(step, "keep", keep)?;
        let supports = Supports::of(step, keep, 0..keep.len(), &self.semantics)?;
        let untouched_rows = self.semantics.untouched_rows;
        let Some(adam) = step.optimizer.adam(self.moments.steps, untouched_rows) else { return Ok(()) };
        if supports.len() == 0 && self.semantics.rejected_batch == RejectedBatch::NoStep {
            return Ok(());
        }
        let mut pairs = supports.by_row();
        let weights = supports.weights(self.semantics.weights, &pairs);
        let coefficients = supports.coefficients(step.advantages, &weights);
        if untouched_rows == UntouchedRows::Decay {
            // A zero gradient only decays a row, and decay is made up for whenever the row is next read.
            pairs.retain(|pair| coefficients[pair.index] != 0.0);
        }
        (self.moments.vocab_size, self.moments.width) = (step.batch.vocab_size, step.batch.width);
        cpu::update_moments(&step.batch, &pairs, &coefficients, &mut self.moments, &adam);
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
        state::encode(&self.moments, &self.semantics)
    }

    /// Replaces the moments by saved ones.
    ///
    /// Bytes that are cut short, damaged, of another format version, made under semantics that give other moments, or with
    /// a vocabulary or width other than this model has seen are an error, and the model stays as it was. A model that has committed nothing yet compares with
    /// its first batch instead.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let loaded = state::decode(bytes, &self.semantics)?;
        if self.moments.steps > 0 {
            loaded.check_dims(self.moments.vocab_size, self.moments.width, "this model has")?;
        }
        self.moments = loaded;
        Ok(())
    }

    /// Checks all inputs but the ids.
    fn check(&self, step: &Step, name: &str, selected: &[u8]) -> Result<(), Error> {
        step.check()?;
        step.batch.check_per_token(name, selected.len())?;
        self.moments.check(&step.batch)
    }
}
