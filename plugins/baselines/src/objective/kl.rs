//! Penalty on the divergence from the reference model.

use capo_plugin::prelude::*;

use super::term::Term;

/// Estimates of the KL divergence from the reference model at one token; `d = ref_logp − logp`
/// (John Schulman's names).
#[derive(Choice, Debug, Clone, Copy, PartialEq, Eq)]
pub enum KlEstimator {
    /// `−d`. Its gradient is 0 on average, so it measures the divergence but does not reduce it.
    K1,
    /// `d² / 2`.
    K2,
    /// `exp(d) − d − 1`.
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
#[keys]
#[derive(Debug, Clone, Copy)]
pub(super) struct Penalty {
    /// Weight of the penalty on distance from the reference model; 0 needs no reference model.
    #[key(default = 0.0, at_least = 0)]
    beta: f32,
    /// Estimate of that distance.
    #[key(default = KlEstimator::K3)]
    kl_estimator: KlEstimator,
}

/// A penalty for objectives with a ratio.
#[keys]
#[derive(Debug, Clone, Copy)]
pub(super) struct RatioPenalty {
    #[key(flatten)]
    pub penalty: Penalty,
    /// Multiply the estimate by the ratio (DeepSeek-V3.2).
    #[key(default = false)]
    pub use_bias_correction_kl: bool,
}

impl Penalty {
    pub fn inputs(self) -> Inputs {
        if self.beta > 0.0 {
            Inputs::REF_LOGPS
        } else {
            Inputs::NONE
        }
    }

    pub fn validate(self) -> Result<(), PluginError> {
        self.refuse_idle("kl_estimator", self.kl_estimator != KlEstimator::K3)
    }

    /// Refuses a key that is set although there is no penalty.
    fn refuse_idle(self, key: &str, is_set: bool) -> Result<(), PluginError> {
        if self.beta > 0.0 || !is_set {
            return Ok(());
        }
        Err(PluginError::config(format!(
            "`{key}` is set, but `beta` is 0, and distance from the reference model costs nothing \
             (set `beta`, or remove it)"
        )))
    }
}

impl RatioPenalty {
    /// A penalty that is never multiplied by a ratio.
    pub fn without_ratio(penalty: Penalty) -> Self {
        Self {
            penalty,
            use_bias_correction_kl: false,
        }
    }

    /// The reference's log-probabilities; `None` if `beta` is 0.
    pub fn ref_logps<'a>(self, batch: &Batch<'a>) -> Result<Option<&'a [f32]>, PluginError> {
        if self.penalty.beta == 0.0 {
            Ok(None)
        } else {
            batch.ref_logps().map(Some)
        }
    }

    pub fn inputs(self) -> Inputs {
        self.penalty.inputs()
    }

    pub fn validate(self) -> Result<(), PluginError> {
        self.penalty.validate()?;
        self.penalty
            .refuse_idle("use_bias_correction_kl", self.use_bias_correction_kl)
    }

    /// Adds the penalty to a token's term, and returns the estimate in nats.
    pub fn apply(self, term: &mut Term, ratio: f32, logp: f32, ref_logp: f32) -> f32 {
        let Penalty { beta, kl_estimator } = self.penalty;
        let (value, slope) = kl_estimator.of(logp, ref_logp);
        let weight = if self.use_bias_correction_kl {
            ratio
        } else {
            1.0
        };
        term.loss += beta * (weight * value);
        term.by_logp += beta * (weight * slope);
        if self.use_bias_correction_kl {
            term.by_ratio += beta * value;
        }
        weight * value
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
