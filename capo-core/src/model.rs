//! The curvature model: prepare, then assess; `commit.rs` has the commit that follows.

use crate::accept::Assessment;
use crate::certificate::Certificate;
use crate::error::ensure;
use crate::moments::Moments;
use crate::predict::Prediction;
use crate::proposal::Proposer;
use crate::semantics::{Probabilities, Semantics, Temperature};
use crate::shift::Shift;
use crate::store::{Source, Store};
use crate::subset::Subsets;
use crate::support::Supports;
use crate::{Acceptance, Error, Granularity, Step, collect, state};

/// Predicts how far the step of each subset of tokens would move the objective and the policy, and
/// keeps the subsets within bounds.
///
/// The model holds the last layer's Adam moments. `assess` and `batch_shift` read them as they were
/// before the batch; `commit` advances them by one step. A step that brings the trainer's own
/// moments is assessed with those.
#[derive(Debug)]
pub struct CurvatureModel {
    pub(crate) acceptance: Acceptance,
    granularity: Granularity,
    pub(crate) semantics: Semantics,
    pub(crate) threads: usize,
    pub(crate) moments: Store,
}

/// A step with checked inputs and the collected supports of its tokens: O(N K) bytes.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(crate) step: Step<'a>,
    pub(crate) supports: Supports,
}

/// Shifts of the single step that a whole batch proposes; names and units as in [`Assessment`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BatchShift {
    /// Policy shift `m_F`.
    pub m_f: f64,
    /// Objective shift `m_H`.
    pub m_h: f64,
    /// Exact KL divergence in the model.
    pub kl: f64,
    /// Exact change of the surrogate in the model.
    pub surrogate: f64,
    /// N: tokens in the averages; tokens with non-finite data are left out.
    pub tokens: usize,
}

impl CurvatureModel {
    /// A model without history, with as many threads as the machine runs at once.
    ///
    /// An error for a NaN threshold, an empty range, groups in the authors' semantics, or switches
    /// that contradict each other.
    pub fn new(
        acceptance: Acceptance,
        granularity: Granularity,
        semantics: Semantics,
    ) -> Result<Self, Error> {
        acceptance.check()?;
        ensure(
            granularity != Granularity::Group || semantics != Semantics::AUTHORS,
            || {
                "`granularity` is `group`, which the authors' semantics do not have (choose \
                 `token`, `completion` or `batch`, or the paper's semantics)"
            },
        )?;
        ensure(
            semantics.probabilities != Probabilities::Full
                || semantics.temperature == Temperature::Loss,
            || {
                "`probabilities` is `full`, which is known at the loss's temperature only (set \
                 `temperature` to `loss`)"
            },
        )?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            acceptance,
            granularity,
            semantics,
            threads,
            moments: Store::Host(Moments::default()),
        })
    }

    /// Sets the number of threads to at most `threads`, at least 1; results do not depend on it.
    pub fn with_threads(self, threads: usize) -> Self {
        Self {
            threads: threads.max(1),
            ..self
        }
    }

    /// Collects the model's inputs for the tokens with `mask[b, t] != 0`; `mask` is `[B, T]`.
    ///
    /// An error if shapes, ids or settings are out of bounds, or if vocabulary or width differ from
    /// those of the model's moments.
    pub fn prepare<'a>(&self, step: &Step<'a>, mask: &[u8]) -> Result<Prepared<'a>, Error> {
        step.check(&self.semantics)?;
        step.batch.check_per_token("mask", mask.len())?;
        if step.moments.is_none() {
            self.moments
                .check_dims(step.batch.vocab_size, step.batch.width, "the batch has")?;
        }
        let supports = collect::supports(step, mask, &self.semantics, self.threads)?;
        Ok(Prepared {
            step: *step,
            supports,
        })
    }

    /// The bounds within which subsets are kept.
    pub fn acceptance(&self) -> Acceptance {
        self.acceptance
    }

    /// Proposes a step for each subset of the prepared tokens, predicts its shifts and decides on
    /// it.
    ///
    /// Each subset is treated as if its tokens were the whole batch (paper, eq. 7 to 11).
    /// [`Semantics`] decides how they form one gradient and one curvature. A token with non-finite
    /// data is left out of its subset, rejected and counted. Only a device can fail.
    pub fn assess(&self, prepared: &Prepared) -> Result<Assessment, Error> {
        self.assess_by(prepared, &self.acceptance)
    }

    /// Like [`assess`](Self::assess), with other thresholds.
    pub fn assess_by(
        &self,
        prepared: &Prepared,
        acceptance: &Acceptance,
    ) -> Result<Assessment, Error> {
        let Prepared { step, supports } = prepared;
        let subsets = Subsets::new(supports, &step.batch, self.granularity);
        let own = self.moments_at(step)?;
        let proposer = self.proposer(prepared, own.as_ref());
        let shifts = Prediction::new(&proposer, &subsets)?;
        let mut assessment = Assessment::new(step.batch.action_ids.len());
        for (n, &subset) in subsets.of.iter().enumerate() {
            let token = supports.position(n);
            let shift = shifts.of(subset as usize);
            if self.semantics.exempts(supports.signals[n]) {
                assessment.exempt(token, &shift);
            } else {
                assessment.judge(token, &shift, acceptance);
            }
        }
        for &token in &supports.not_finite {
            assessment.refuse(token);
        }
        let threshold = acceptance.fisher_threshold;
        assessment.certificate = Certificate::of(
            step,
            supports,
            &subsets,
            &shifts,
            &assessment.token_mask,
            threshold,
            &self.semantics,
        );
        Ok(assessment)
    }

    /// Shifts of the step that the prepared tokens with `token_mask[b, t] != 0` propose; all 0 if
    /// there are none.
    ///
    /// These are the shifts that `assess` would find for the batch as one subset, whatever the
    /// model's granularity. An error if `token_mask` is not `[B, T]`, or includes tokens that are
    /// not prepared.
    pub fn batch_shift(&self, prepared: &Prepared, token_mask: &[u8]) -> Result<BatchShift, Error> {
        let subset = prepared.kept(token_mask)?;
        let tokens = subset.size();
        let own = self.moments_at(&prepared.step)?;
        let proposer = self.proposer(prepared, own.as_ref());
        let Shift {
            m_f,
            m_h,
            kl,
            surrogate,
            ..
        } = Prediction::new(&proposer, &subset)?.of(0);
        Ok(BatchShift {
            m_f,
            m_h,
            kl,
            surrogate,
            tokens,
        })
    }

    /// The unit that is kept or rejected as a whole.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// Number of last-layer rows with moments of the model's own.
    pub fn rows(&self) -> usize {
        self.moments.rows()
    }

    /// Number of committed Adam steps.
    pub fn steps(&self) -> u64 {
        self.moments.steps()
    }

    /// The moments as bytes, little-endian on every machine. A model that loads them continues bit
    /// for bit. Only a device can fail.
    pub fn save(&self) -> Result<Vec<u8>, Error> {
        match &self.moments {
            Store::Host(moments) => Ok(state::encode(moments, &self.semantics)),
            Store::Cuda(moments) => Ok(state::encode(&moments.to_host()?, &self.semantics)),
        }
    }

    /// Replaces the moments by saved ones.
    ///
    /// An error leaves the model unchanged. Errors are bytes that are cut short, damaged or of
    /// another format version, semantics with other moments, and a vocabulary or width that differs
    /// from the model's. A model without a commit compares these with its first batch instead.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let loaded = Store::Host(state::decode(bytes, &self.semantics)?);
        if self.moments.steps() > 0 {
            let (vocab_size, width) = self.moments.dims();
            loaded.check_dims(vocab_size, width, "this model has")?;
        }
        self.moments = loaded;
        Ok(())
    }

    /// The model's own moments where the batch lies, if they are elsewhere and the step needs them.
    /// Moments that were loaded, or made by a batch elsewhere, stay there until the next commit.
    fn moments_at(&self, step: &Step) -> Result<Option<Store>, Error> {
        if step.moments.is_none() {
            self.moments.moved_to(&step.batch)
        } else {
            Ok(None)
        }
    }

    fn proposer<'a>(&'a self, prepared: &'a Prepared, own: Option<&'a Store>) -> Proposer<'a> {
        let Prepared { step, supports } = prepared;
        let source = step
            .moments
            .map_or(Source::Own(own.unwrap_or(&self.moments)), Source::Trainer);
        Proposer {
            step,
            supports,
            semantics: &self.semantics,
            source,
            threads: self.threads,
        }
    }
}

impl Prepared<'_> {
    /// The tokens in `token_mask` as one subset.
    pub(crate) fn kept(&self, token_mask: &[u8]) -> Result<Subsets, Error> {
        let batch = &self.step.batch;
        batch.check_per_token("token_mask", token_mask.len())?;
        let subset = Subsets::kept(&self.supports, batch, token_mask);
        let known = subset.size()
            + self
                .supports
                .not_finite
                .iter()
                .filter(|&&token| token_mask[token] != 0)
                .count();
        let asked = token_mask.iter().filter(|&&keep| keep != 0).count();
        ensure(known >= asked, || {
            let unknown = asked - known;
            format!(
                "`token_mask` has {unknown} tokens that were not prepared (keep only what the \
                 prepared mask has)"
            )
        })?;
        Ok(subset)
    }
}
