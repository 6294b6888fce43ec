//! Importance correction for completions from a policy other than the trainer's, such as an
//! inference engine's.

use capo_plugin::prelude::*;
use serde::Serialize;

use crate::checks;

/// Largest log-ratio in TRL's code, nats; a token's log-ratio to the old policy is clamped to ±
/// this.
pub(super) const MOST: f64 = 20.0;
/// Smallest log-ratio of a completion or a correction, nats: `ln(1e-8)`.
pub(super) const LEAST: f64 = -18.420_680_743_952_367;

/// Level of the ratio of trainer to sampler, and treatment of a ratio outside the limits (TRL
/// `vllm_importance_sampling_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionMode {
    /// The token's ratio, clamped to the nearer limit.
    TokenTruncate,
    /// The token's ratio, or 0 outside the limits.
    TokenMask,
    /// The completion's ratio, clamped to the nearer limit.
    SequenceTruncate,
    /// The completion's ratio, or 0 outside the limits.
    SequenceMask,
}

/// An importance ratio with limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Correction {
    pub mode: Option<CorrectionMode>,
    pub clip_max: f32,
    pub clip_min: Option<f32>,
}

/// Default of the largest ratio.
pub(super) fn clip_max() -> f32 {
    3.0
}

impl Correction {
    /// `[B]`, nats: logarithm of each completion's ratio.
    pub fn log_ratios(self, batch: &Batch<'_>) -> Result<Vec<f64>, PluginError> {
        let completions = batch.dims.completions as usize;
        let Some(mode) = self.mode else {
            return Ok(vec![0.0; completions]);
        };
        let (old_logps, sampler_logps) =
            (batch.old_logps()?, batch.rollout_context()?.sampler_logps());
        let of_token = |i: usize| f64::from(old_logps[i]) - f64::from(sampler_logps[i]);
        let of_completion = |b: usize| {
            let tokens = batch
                .dims
                .row(b)
                .filter(|&i| batch.completion_mask[i] == 1)
                .map(of_token);
            match mode {
                CorrectionMode::TokenTruncate => tokens.map(|ratio| self.truncated(ratio)).sum(),
                CorrectionMode::TokenMask => tokens.map(|ratio| self.masked(ratio)).sum(),
                CorrectionMode::SequenceTruncate => self.truncated(tokens.sum()),
                CorrectionMode::SequenceMask => self.masked(tokens.sum()),
            }
        };
        Ok((0..completions).map(of_completion).collect())
    }

    fn truncated(self, log_ratio: f64) -> f64 {
        let (low, high) = self.limits();
        log_ratio.max(low).min(high).clamp(LEAST, MOST)
    }

    /// Log-ratio for a ratio of 0: the smallest that counts.
    fn masked(self, log_ratio: f64) -> f64 {
        let (low, high) = self.limits();
        if log_ratio < low || log_ratio > high {
            LEAST
        } else {
            log_ratio.clamp(LEAST, MOST)
        }
    }

    fn limits(self) -> (f64, f64) {
        let low = self
            .clip_min
            .map_or(f64::NEG_INFINITY, |low| f64::from(low).ln());
        (low, f64::from(self.clip_max).ln())
    }

    pub fn inputs(self) -> Inputs {
        self.mode.map_or(Inputs::NONE, |_| Inputs::ROLLOUT_CONTEXT)
    }

    pub fn validate(self) -> Result<(), PluginError> {
        let (max, min) = (
            "vllm_importance_sampling_clip_max",
            "vllm_importance_sampling_clip_min",
        );
        checks::positive(max, self.clip_max)?;
        let low = self.clip_min.unwrap_or(self.clip_max);
        checks::positive(min, low)?;
        if low > self.clip_max {
            let high = self.clip_max;
            return Err(PluginError::config(format!(
                "`{min}` is {low}, above `{max}`, {high} (lower it)"
            )));
        }
        let idle = [
            (max, self.clip_max != clip_max()),
            (min, self.clip_min.is_some()),
        ];
        match idle.iter().find(|(_, set)| *set && self.mode.is_none()) {
            None => Ok(()),
            Some((key, _)) => Err(PluginError::config(format!(
                "`{key}` is set, but `vllm_importance_sampling_mode` is not, and nothing is corrected (set it, or remove the limit)"
            ))),
        }
    }
}
