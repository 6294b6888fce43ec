//! Penalty on the divergence from the reference model.

use capo_plugin::prelude::*;
use serde::Serialize;

use super::term::Term;
use crate::checks;

/// Estimates of the KL divergence from the reference model at one token; `d = ref_logp − logp`
/// (John Schulman's names).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// `−d`. Its gradient is 0 on average, so it measures the divergence but does not reduce it.
    K1,
    /// `d² / 2`.
    K2,
    /// `exp(d) − d − 1`.
    #[default]
    K3,
}

impl KlEstimator {
    /// The estimate in nats, and its derivative by the log-probability.
    fn of(self, logp: f32, ref_logp: f32) -> (f32, f32) {
        let d = ref_logp - logp;
        match self {
            Self::K1 => (-d, 1.0),
            Self::K2 => (d * d / 2.0, -d),
            Self::K3 => (d.exp() - d - 1.0, 1.0 - d.exp()),
        }
    }
}

/// `beta` times an estimate, added to the loss of every token.
///
/// Each objective repeats its keys as fields of its own, because a component's keys are listed by
/// its fields, and serde's `flatten` hides them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Penalty {
    pub beta: f32,
    pub estimator: KlEstimator,
    /// True if the ratio multiplies the estimate.
    pub by_ratio: bool,
}

impl Penalty {
    /// The reference's log-probabilities; `None` if `beta` is 0.
    pub fn ref_logps<'a>(self, batch: &Batch<'a>) -> Result<Option<&'a [f32]>, PluginError> {
        if self.beta == 0.0 {
            Ok(None)
        } else {
            batch.ref_logps().map(Some)
        }
    }

    /// Adds the penalty to a token's term, and returns the estimate in nats.
    pub fn apply(self, term: &mut Term, ratio: f32, logp: f32, ref_logp: f32) -> f32 {
        let (value, slope) = self.estimator.of(logp, ref_logp);
        let weight = if self.by_ratio { ratio } else { 1.0 };
        term.loss += self.beta * (weight * value);
        term.by_logp += self.beta * (weight * slope);
        if self.by_ratio {
            term.by_ratio += self.beta * value;
        }
        weight * value
    }

    pub fn inputs(self) -> Inputs {
        if self.beta > 0.0 {
            Inputs::REF_LOGPS
        } else {
            Inputs::NONE
        }
    }

    pub fn validate(self) -> Result<(), PluginError> {
        checks::not_negative("beta", self.beta)?;
        if self.beta > 0.0 {
            return Ok(());
        }
        let idle = [
            ("kl_estimator", self.estimator != KlEstimator::default()),
            ("use_bias_correction_kl", self.by_ratio),
        ];
        match idle.iter().find(|(_, set)| *set) {
            None => Ok(()),
            Some((key, _)) => Err(PluginError::config(format!(
                "`{key}` is set, but `beta` is 0, and distance from the reference model costs nothing (set `beta`, or remove it)"
            ))),
        }
    }
}

/// Mean of the estimate over tokens, recorded as `kl`.
#[derive(Default)]
pub(super) struct MeanKl {
    sum: f64,
    tokens: u64,
}

impl MeanKl {
    pub fn add(&mut self, kl: f32) {
        self.sum += f64::from(kl);
        self.tokens += 1;
    }

    pub fn record(&self, ctx: &mut Ctx<'_>) {
        if self.tokens > 0 {
            ctx.record("kl", self.sum / self.tokens as f64);
        }
    }
}

pub(super) const ABOUT_BETA: &str =
    "weight of the penalty on distance from the reference model; 0 needs no reference model";
pub(super) const ABOUT_ESTIMATOR: &str = "how that distance is estimated: `k1`, `k2` or `k3`";
pub(super) const ABOUT_CORRECTION: &str =
    "whether the estimate is multiplied by the ratio (DeepSeek-V3.2)";
