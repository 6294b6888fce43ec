//! `[warnings]`: limits beyond which a run warns its user.

use serde::{Deserialize, Serialize};

use super::setting::{Setting, Settings, settings};

/// Section `[warnings]`; a limit of 0 turns its warning off.
#[settings]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WarningsConfig {
    /// Share of the best mean reward of ten steps that is lost.
    #[setting(default = 0.5, at_least = 0, at_most = 1)]
    pub reward_fall: f64,
    /// Share of the best held-out accuracy that is lost; of the held-out reward in a run without an
    /// accuracy.
    #[setting(default = 0.2, at_least = 0, at_most = 1)]
    pub held_out_fall: f64,
    /// Number of steps in a row in which every advantage is 0.
    #[setting(default = 10, unit = "steps", at_least = 0, at_most = Self::MOST_STEPS)]
    pub no_signal_steps: usize,
    /// KL divergence of a step, divided by the median of the steps before. It needs
    /// `train.measure_step`.
    #[setting(default = 30.0, at_least = 0)]
    pub kl_ratio: f64,
    /// Mean entropy of ten steps.
    #[setting(default = 0.01, unit = "nats", at_least = 0)]
    pub entropy: f64,
    /// Share of completions that the length limit cut off, averaged over ten steps.
    #[setting(default = 0.5, at_least = 0, at_most = 1)]
    pub clipped_ratio: f64,
    /// Share of tokens that a mask rejects, in each of five steps.
    #[setting(default = 0.2, at_least = 0, at_most = 1)]
    pub rejection_rate: f64,
    /// Number of steps of a run in which a mask rejects nothing.
    #[setting(default = 20, unit = "steps")]
    pub idle_mask_steps: usize,
    /// Mean of a weight component over twenty steps.
    #[setting(default = 0.3, at_least = 0)]
    pub weight_mean: f64,
    /// Share of a step's length that remains after a step control, in each of fifty steps.
    #[setting(default = 0.1, at_least = 0, at_most = 1)]
    pub applied: f64,
    /// Number of steps of a run in which a step control leaves every step unchanged.
    #[setting(default = 50, unit = "steps")]
    pub idle_control_steps: usize,
}

impl WarningsConfig {
    /// Number of steps that the checks remember.
    pub const MOST_STEPS: usize = 256;
}
