//! The curvature model: prepare -> assess; the commit that follows is in `commit.rs`.

use crate::accept::Assessment;
use crate::certificate::Certificate;
use crate::moments::Moments;
use crate::proposal::Proposer;
use crate::semantics::{Probabilities, Semantics, Temperature};
use crate::shift::Shift;
use crate::store::{Source, Store};
use crate::subset::Subsets;
use crate::support::Supports;
use crate::{Acceptance, Error, Granularity, Step, collect, predict, state};

/// Predicts how far the step of each subset of tokens would move objective and policy, and keeps the subsets within
/// bounds.
///
/// It holds the last layer's Adam moments. `assess` and `batch_shift` read them as they were before the batch; `commit`
/// advances them by one step. A step that brings the trainer's own moments is assessed with those.
#[derive(Debug)]
pub struct CurvatureModel {
    pub(crate) acceptance: Acceptance,
    granularity: Granularity,
    pub(crate) semantics: Semantics,
    pub(crate) threads: usize,
    pub(crate) moments: Store,
}

/// A step whose inputs have been checked and whose tokens' supports have been collected: O(N K) bytes.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(crate) step: Step<'a>,
    pub(crate) supports: Supports,
    positions: usize,
}

/// Shifts of the one step that a whole batch proposes; names and units as in [`Assessment`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BatchShift {
    /// Policy shift `m_F`.
    pub m_f: f64,
    /// Objective shift `m_H`.
    pub m_h: f64,
    /// Exact KL divergence.
    pub kl: f64,
    /// Exact change of the surrogate.
    pub surrogate: f64,
    /// N, tokens averaged over; those with non-finite data are left out.
    pub tokens: usize,
}

impl CurvatureModel {
    /// A model without history, on as many threads as the machine runs at once.
    ///
    /// A threshold that is NaN, an empty range, groups in the authors' semantics, or switches that contradict each other are
    /// errors.
    pub fn new(acceptance: Acceptance, granularity: Granularity, semantics: Semantics) -> Result<Self, Error> {
        acceptance.check()?;
        if granularity == Granularity::Group && semantics == Semantics::AUTHORS {
            return Err(Error::new(
                "`granularity` is `group`, which the authors' semantics do not have (choose `token`, `completion` or `batch`, or the paper's semantics)",
            ));
        }
        if semantics.probabilities == Probabilities::Full && semantics.temperature != Temperature::Loss {
            return Err(Error::new(
                "`probabilities` is `full`, which is known at the loss's temperature only (set `temperature` to `loss`)",
            ));
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { acceptance, granularity, semantics, threads, moments: Store::Host(Moments::default()) })
    }

    /// Sets the number of threads to at most `threads`, at least 1; results do not depend on it.
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// Collects what the model needs of the tokens with `mask[b, t] != 0`; `mask` is `[B, T]`.
    ///
    /// Shapes, ids or settings out of bounds, or another vocabulary or width than the model's moments have, are errors.
    pub fn prepare<'a>(&self, step: &Step<'a>, mask: &[u8]) -> Result<Prepared<'a>, Error> {
        step.check(&self.semantics)?;
        step.batch.check_per_token("mask", mask.len())?;
        if step.moments.is_none() {
            self.moments.check_dims(step.batch.vocab_size, step.batch.width, "the batch has")?;
        }
        let supports = collect::supports(step, mask, &self.semantics, self.threads)?;
        Ok(Prepared { step: *step, supports, positions: mask.len() })
    }

    /// Which subsets are kept.
    pub fn acceptance(&self) -> Acceptance {
        self.acceptance
    }

    /// Proposes a step for each subset of the prepared tokens, predicts its shifts and decides on it.
    ///
    /// Each subset is treated as if its tokens alone were the batch (paper, eq. 7 to 11), whatever else is in it; [`Semantics`]
    /// says how they make one gradient and one curvature. A token with non-finite data is left out of its subset, rejected
    /// and counted. Only a device can fail.
    pub fn assess(&self, prepared: &Prepared) -> Result<Assessment, Error> {
        self.assess_by(prepared, &self.acceptance)
    }

    /// As above, by thresholds of the moment.
    pub fn assess_by(&self, prepared: &Prepared, acceptance: &Acceptance) -> Result<Assessment, Error> {
        let Prepared { step, supports, positions } = prepared;
        let subsets = Subsets::new(supports, &step.batch, self.granularity);
        let shifts = self.shifts(prepared, &subsets)?;
        let mut assessment = Assessment::new(*positions);
        for (n, &token) in supports.tokens.iter().enumerate() {
            let Some(shift) = subsets.index(n).map(|subset| &shifts[subset]) else { continue };
            if self.semantics.exempts(supports.signals[n]) {
                assessment.exempt(token, shift);
            } else {
                assessment.judge(token, shift, acceptance);
            }
        }
        for &token in &supports.not_finite {
            assessment.refuse(token);
        }
        let threshold = acceptance.fisher_threshold;
        assessment.certificate =
            Certificate::of(step, supports, &subsets, &shifts, &assessment.keep, threshold, &self.semantics);
        Ok(assessment)
    }

    /// Shifts of the step proposed by those of the prepared tokens with `keep[b, t] != 0`; all 0 if there are none.
    ///
    /// These are the shifts that `assess` would find for the batch as one subset, at whatever granularity the model has.
    /// A `keep` of another length than `[B, T]`, or with tokens that are not prepared, is an error.
    pub fn batch_shift(&self, prepared: &Prepared, keep: &[u8]) -> Result<BatchShift, Error> {
        let subset = prepared.kept(keep)?;
        let tokens = subset.size();
        let Shift { m_f, m_h, kl, surrogate, .. } = self.shifts(prepared, &subset)?[0];
        Ok(BatchShift { m_f, m_h, kl, surrogate, tokens })
    }

    /// The unit that is kept or rejected as a whole.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// Rows of the last layer that have moments of the model's own.
    pub fn rows(&self) -> usize {
        self.moments.rows()
    }

    /// Adam steps committed.
    pub fn steps(&self) -> u64 {
        self.moments.steps()
    }

    /// The moments as bytes, little-endian on every machine; a model that loads them continues bit for bit. Only a device can
    /// fail.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        match &self.moments {
            Store::Host(moments) => Ok(state::encode(moments, &self.semantics)),
            Store::Cuda(moments) => Ok(state::encode(&moments.to_host()?, &self.semantics)),
        }
    }

    /// Replaces the moments by saved ones.
    ///
    /// Bytes that are cut short, damaged, of another format version, made under semantics that give other moments, or with
    /// a vocabulary or width other than this model has seen are an error, and the model stays as it was. A model that has
    /// committed nothing yet compares with its first batch instead.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let loaded = Store::Host(state::decode(bytes, &self.semantics)?);
        if self.moments.steps() > 0 {
            let (vocab_size, width) = self.moments.dims();
            loaded.check_dims(vocab_size, width, "this model has")?;
        }
        self.moments = loaded;
        Ok(())
    }

    fn shifts(&self, prepared: &Prepared, subsets: &Subsets) -> Result<Vec<Shift>, Error> {
        let Prepared { step, supports, .. } = prepared;
        // Moments that were loaded, or that a batch elsewhere made, are where this one lies from the next commit on.
        let moved = if step.moments.is_none() { self.moments.moved_to(&step.batch)? } else { None };
        let own = moved.as_ref().unwrap_or(&self.moments);
        let source = step.moments.map_or(Source::Own(own), Source::Trainer);
        let proposer = Proposer { step, supports, semantics: &self.semantics, source, threads: self.threads };
        predict::shifts(&proposer, subsets)
    }
}

impl Prepared<'_> {
    /// The tokens in `keep` as one subset.
    pub(crate) fn kept(&self, keep: &[u8]) -> Result<Subsets, Error> {
        let batch = &self.step.batch;
        batch.check_per_token("keep", keep.len())?;
        let subset = Subsets::kept(&self.supports, batch, keep);
        let known = subset.size() + self.supports.not_finite.iter().filter(|&&token| keep[token] != 0).count();
        let asked = keep.iter().filter(|&&keep| keep != 0).count();
        if known < asked {
            return Err(Error::new(format!(
                "`keep` has {} tokens that were not prepared (keep only what the prepared mask has)",
                asked - known
            )));
        }
        Ok(subset)
    }
}
