//! Whose probabilities a mask compares.

use capo_plugin::prelude::*;
use serde::Serialize;

/// Meaning of the key `policies`, for `register!`.
pub(crate) const ABOUT: &str = "whose probabilities: `trainer/sampler`, `trainer/old` or `old/sampler`";

/// Two of the three policies that gave a token a probability: the trainer's now; the same when the token was sampled, as the trainer
/// computes it (`old`); the sampler's own, with its precision and its truncation.
#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policies {
    /// All that lies between sampling and the step: other precision, other kernels, steps since.
    #[serde(rename = "trainer/sampler")]
    TrainerSampler,
    /// The steps since.
    #[serde(rename = "trainer/old")]
    TrainerOld,
    /// Precision and kernels.
    #[serde(rename = "old/sampler")]
    OldSampler,
}

impl Policies {
    /// For `#[serde(default = "...")]`.
    pub(crate) fn trainer_sampler() -> Self {
        Self::TrainerSampler
    }

    /// For `#[serde(default = "...")]`.
    pub(crate) fn trainer_old() -> Self {
        Self::TrainerOld
    }

    /// For `#[serde(default = "...")]`.
    pub(crate) fn old_sampler() -> Self {
        Self::OldSampler
    }

    /// Inputs that the host must compute.
    pub(crate) fn inputs(self) -> Inputs {
        match self {
            Self::TrainerSampler => Inputs::ROLLOUT_CONTEXT,
            Self::TrainerOld => Inputs::OLD_LOGPS,
            Self::OldSampler => Inputs::OLD_LOGPS | Inputs::ROLLOUT_CONTEXT,
        }
    }

    /// The log-probabilities of both.
    pub(crate) fn compare(self, ctx: &mut Ctx, batch: &Batch) -> Result<Compared, PluginError> {
        let of = if self == Self::OldSampler { batch.old_logps()? } else { batch.logps };
        let against = match self {
            Self::TrainerOld => batch.old_logps()?,
            _ => ctx.rollout_context()?.sampler_logps(),
        };
        Ok(Compared { of: of.to_vec(), against: against.to_vec() })
    }
}

/// ln of a ratio within verl's ±20, so that no power of it overflows.
pub(crate) fn safe(log_ratio: f32) -> f32 {
    log_ratio.clamp(-20.0, 20.0)
}

/// How far a ratio lies above 1; infinite where it is below `low` or no number.
pub(crate) fn above_one(ratio: f32, low: f32) -> f64 {
    if ratio >= low { f64::from(ratio) - 1.0 } else { f64::INFINITY }
}

/// Log-probabilities of the same tokens under two policies, `[B, T]` each, nats.
pub(crate) struct Compared {
    pub(crate) of: Vec<f32>,
    pub(crate) against: Vec<f32>,
}

impl Compared {
    /// ln of the ratio of their probabilities, first by second.
    pub(crate) fn log_ratios(&self) -> Vec<f32> {
        self.of.iter().zip(&self.against).map(|(of, against)| of - against).collect()
    }

    /// The two probabilities of token `i`.
    pub(crate) fn probabilities(&self, i: usize) -> (f32, f32) {
        (self.of[i].exp(), self.against[i].exp())
    }

    /// True if a step at this advantage pushes token `i` further away from the second policy: up, where it is above already, or
    /// down, where it is below.
    pub(crate) fn goes_further(&self, i: usize, advantage: f32) -> bool {
        if advantage > 0.0 { self.of[i] > self.against[i] } else { self.of[i] < self.against[i] }
    }
}
