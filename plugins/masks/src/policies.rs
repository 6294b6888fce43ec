//! The two policies that a mask compares.

use capo_plugin::prelude::*;

/// The two policies whose probabilities are compared.
///
/// `trainer` is the current policy. `old` is the policy that sampled the token, as computed by the
/// trainer. `sampler` is the sampler's own distribution, with its precision and truncation.
#[derive(Choice, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policies {
    /// Differs by everything between sampling and step: precision, kernels, and optimizer steps
    /// since.
    #[choice("trainer/sampler")]
    TrainerSampler,
    /// Differs by the optimizer steps since sampling.
    #[choice("trainer/old")]
    TrainerOld,
    /// Differs by precision and kernels.
    #[choice("old/sampler")]
    OldSampler,
}

impl Policies {
    /// Inputs that the host must compute.
    pub(crate) fn inputs(self) -> Inputs {
        match self {
            Self::TrainerSampler => Inputs::ROLLOUT_CONTEXT,
            Self::TrainerOld => Inputs::OLD_LOGPS,
            Self::OldSampler => Inputs::OLD_LOGPS | Inputs::ROLLOUT_CONTEXT,
        }
    }

    /// Log-probabilities of all tokens under both policies.
    pub(crate) fn compare(self, batch: &Batch) -> Result<Compared, PluginError> {
        let of = if self == Self::OldSampler {
            batch.old_logps()?
        } else {
            batch.logps
        };
        let against = match self {
            Self::TrainerOld => batch.old_logps()?,
            _ => batch.rollout_context()?.sampler_logps(),
        };
        Ok(Compared {
            of: of.to_vec(),
            against: against.to_vec(),
        })
    }
}

/// Log-ratio clamped to verl's ±20, so that `exp` does not overflow.
pub(crate) fn safe(log_ratio: f32) -> f32 {
    log_ratio.clamp(-20.0, 20.0)
}

/// Distance of a ratio above 1; infinite if the ratio is below `low` or NaN.
pub(crate) fn above_one(ratio: f32, low: f32) -> f64 {
    // A ratio that `f32` cannot hold is above all limits but an infinite one.
    if ratio >= low {
        (f64::from(ratio) - 1.0).min(f64::MAX)
    } else {
        f64::INFINITY
    }
}

/// Log-probabilities of the same tokens under two policies, `[B, T]` each, nats.
pub(crate) struct Compared {
    pub(crate) of: Vec<f32>,
    pub(crate) against: Vec<f32>,
}

impl Compared {
    /// `[B, T]`, nats: log-ratios, first policy minus second.
    pub(crate) fn log_ratios(&self) -> Vec<f32> {
        self.of
            .iter()
            .zip(&self.against)
            .map(|(of, against)| of - against)
            .collect()
    }

    /// Probabilities of token `i` under the two policies.
    pub(crate) fn probabilities(&self, i: usize) -> (f32, f32) {
        (self.of[i].exp(), self.against[i].exp())
    }

    /// True if a step with this advantage pushes token `i` further from the second policy: up where
    /// its probability is already higher, down where it is lower.
    pub(crate) fn goes_further(&self, i: usize, advantage: f32) -> bool {
        if advantage > 0.0 {
            self.of[i] > self.against[i]
        } else {
            self.of[i] < self.against[i]
        }
    }
}
