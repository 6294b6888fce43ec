//! `[warnings]`: limits beyond which a run warns its user.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::limits::from_zero;

/// Section `[warnings]`; a limit of 0 turns its warning off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarningsConfig {
    /// Lost share of the best mean reward of ten steps.
    pub reward_fall: f64,
    /// Number of steps in a row in which every advantage is 0.
    pub no_signal_steps: usize,
    /// KL divergence of a step, divided by the median of the steps before.
    pub kl_ratio: f64,
    /// Mean entropy of ten steps, in nats.
    pub entropy: f64,
    /// Share of completions that the length limit cut off, averaged over ten steps.
    pub clipped_ratio: f64,
    /// Share of tokens that a mask rejects, in each of five steps.
    pub rejection_rate: f64,
    /// Number of steps of a run in which a mask rejects nothing.
    pub idle_mask_steps: usize,
    /// Mean of a weight component over twenty steps.
    pub weight_mean: f64,
    /// Share of a step's length that remains after a step control, in each of fifty steps.
    pub applied: f64,
    /// Number of steps of a run in which a step control leaves every step unchanged.
    pub idle_control_steps: usize,
}

impl Default for WarningsConfig {
    fn default() -> Self {
        Self {
            reward_fall: 0.5,
            no_signal_steps: 10,
            kl_ratio: 30.0,
            entropy: 0.01,
            clipped_ratio: 0.5,
            rejection_rate: 0.2,
            idle_mask_steps: 20,
            weight_mean: 0.3,
            applied: 0.1,
            idle_control_steps: 50,
        }
    }
}

impl WarningsConfig {
    /// Refuses numbers below 0, shares above 1, and more steps than are remembered.
    pub(super) fn check(&self) -> Result<()> {
        let steps = |count: usize| count as f64;
        from_zero(&[
            ("warnings.reward_fall", self.reward_fall, 1.0),
            ("warnings.no_signal_steps", steps(self.no_signal_steps), steps(Self::MOST_STEPS)),
            ("warnings.kl_ratio", self.kl_ratio, f64::MAX),
            ("warnings.entropy", self.entropy, f64::MAX),
            ("warnings.clipped_ratio", self.clipped_ratio, 1.0),
            ("warnings.rejection_rate", self.rejection_rate, 1.0),
            ("warnings.weight_mean", self.weight_mean, f64::MAX),
            ("warnings.applied", self.applied, 1.0),
        ])
    }

    /// Number of steps that the checks remember.
    pub const MOST_STEPS: usize = 256;
}
