//! The optimizer that turns a gradient into a direction: SGD, or Adam with the moments of earlier
//! steps.

use std::ops::Range;

use crate::error::ensure;
use crate::{Error, Feature, Semantics, UntouchedRows};

/// Rule that turns a gradient into a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerKind {
    /// The direction is the gradient; no state.
    Sgd,
    /// The direction is the bias-corrected first moment over the root of the second, minus the
    /// decayed weight.
    Adam,
}

/// Gradients that enter Adam's second moment when a step is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecondMoment {
    /// The gradient of the kept tokens, as for the first moment.
    #[default]
    Kept,
    /// `g_k² + g_r²`: `g_k` is the kept tokens' gradient; `g_r`, the rejected part, is the gradient
    /// of all prepared tokens minus `g_k`.
    KeptAndRejected,
}

/// The rule and its constants. A step is `learning_rate` times the direction (paper, section
/// "Modeling the Step").
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerModel {
    /// The rule of the optimizer.
    pub kind: OptimizerKind,
    /// Decay of the first moment per step, in `[0, 1)`; constant over a run, read for Adam only.
    pub beta1: f64,
    /// Decay of the second moment per step, in `[0, 1)`; constant over a run, read for Adam only.
    pub beta2: f64,
    /// Term added to the root of the second moment, above 0; read for Adam only.
    ///
    /// Moments are `f32`, so the second moment is 0 for gradients below about 1e-20. With such a
    /// small `eps` their directions mean nothing.
    pub eps: f64,
    /// The gradients that enter the second moment; read for Adam only.
    pub second_moment: SecondMoment,
    /// Decoupled weight decay, at least 0: the direction loses this factor times the weight, so a
    /// raw logit loses this factor times itself. Read for Adam only.
    pub weight_decay: f64,
}

impl OptimizerModel {
    pub(crate) fn check(&self, semantics: &Semantics) -> Result<(), Error> {
        if self.kind == OptimizerKind::Sgd {
            return Ok(());
        }
        self.check_weight_decay(semantics)?;
        for (name, beta, usual) in [("beta1", self.beta1, 0.9), ("beta2", self.beta2, 0.999)] {
            ensure((0.0..1.0).contains(&beta), || {
                format!(
                    "adam's `{name}` is {beta}, expected at least 0 and below 1 ({usual} is usual)"
                )
            })?;
        }
        let eps = self.eps;
        ensure(eps.is_finite() && eps > 0.0, || {
            format!("adam's `eps` is {eps}, expected a finite number above 0 (1e-8 is usual)")
        })
    }

    fn check_weight_decay(&self, semantics: &Semantics) -> Result<(), Error> {
        let decay = self.weight_decay;
        ensure(decay.is_finite() && decay >= 0.0, || {
            format!(
                "adam's `weight_decay` is {decay}, expected a finite number of at least 0 (0 is \
                 none)"
            )
        })?;
        ensure(decay == 0.0 || semantics.feature != Feature::Next, || {
            format!(
                "adam's `weight_decay` is {decay}, which with `feature` = `next` acts on logits \
                 that are not in the batch (set `feature` to `aligned`, or model no decay)"
            )
        })
    }

    /// Decay of a raw logit per step, as a factor of itself and the learning rate.
    pub(crate) fn logit_decay(&self) -> f64 {
        if self.kind == OptimizerKind::Adam {
            self.weight_decay
        } else {
            0.0
        }
    }

    /// Adam's constants at the step after `steps` earlier ones; `None` for SGD.
    pub(crate) fn adam(&self, steps: u64, untouched_rows: UntouchedRows) -> Option<Adam> {
        let &Self {
            kind,
            beta1,
            beta2,
            eps,
            ..
        } = self;
        let step = steps as f64 + 1.0;
        let unbias1 = 1.0 - beta1.powf(step);
        let unbias2 = 1.0 - beta2.powf(step);
        (kind == OptimizerKind::Adam).then_some(Adam {
            beta1,
            beta2,
            eps,
            unbias1,
            unbias2,
            untouched_rows,
        })
    }
}

/// Moments of one row as last written, `[D]` each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MomentRow<'a> {
    pub exp_avg: &'a [f32],
    pub exp_avg_sq: &'a [f32],
    /// Steps since the last write, whose decay is still missing.
    pub age: u64,
    /// -1 if the first moment is that of a loss, which falls as the objective rises.
    pub sign: f64,
}

impl MomentRow<'_> {
    /// Some columns of the row.
    pub fn columns(self, tile: &Range<usize>) -> Self {
        Self {
            exp_avg: &self.exp_avg[tile.clone()],
            exp_avg_sq: &self.exp_avg_sq[tile.clone()],
            ..self
        }
    }
}

/// Adam at one particular step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Adam {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// `1 - beta^step`.
    pub unbias1: f64,
    pub unbias2: f64,
    pub untouched_rows: UntouchedRows,
}

/// Adam for one row: `mean = old1 m + new1 g`, `square = old2 v + new2 g²`, from moments that may
/// be several steps old.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRule {
    pub old1: f64,
    pub new1: f64,
    pub old2: f64,
    pub new2: f64,
    pub eps: f64,
}

impl Adam {
    /// Rule of the moments after this step, for a row last written `age` steps ago. It includes the
    /// missed decays, unless untouched rows are frozen.
    pub fn update(&self, age: u64) -> RowRule {
        let [old1, old2] = [self.beta1, self.beta2].map(|beta| match self.untouched_rows {
            UntouchedRows::Decay if age > 0 => beta.powf(age as f64 + 1.0),
            UntouchedRows::Decay | UntouchedRows::Freeze => beta,
        });
        RowRule {
            old1,
            new1: 1.0 - self.beta1,
            old2,
            new2: 1.0 - self.beta2,
            eps: self.eps,
        }
    }

    /// Rule of the bias-corrected moments, which give the direction `mean / (sqrt(square) + eps)`.
    /// `None` means moments of zero.
    pub fn proposal(&self, row: Option<&MomentRow>) -> RowRule {
        let rule = self.update(row.map_or(0, |row| row.age));
        RowRule {
            old1: row.map_or(1.0, |row| row.sign) * rule.old1 / self.unbias1,
            new1: rule.new1 / self.unbias1,
            old2: rule.old2 / self.unbias2,
            new2: rule.new2 / self.unbias2,
            eps: rule.eps,
        }
    }
}

impl RowRule {
    /// Entry of the direction from the entries of first moment, second moment and gradient.
    pub fn direction(&self, m: f64, v: f64, g: f64) -> f64 {
        let (mean, square) = self.moments(m, v, g);
        mean / (square.sqrt() + self.eps)
    }

    /// Entries of both moments after the gradient entry `g` is added.
    pub fn moments(&self, m: f64, v: f64, g: f64) -> (f64, f64) {
        (
            self.old1 * m + self.new1 * g,
            self.old2 * v + self.new2 * g * g,
        )
    }
}
