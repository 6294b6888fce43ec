//! Importance correction for completions from a policy other than the trainer's, such as an
//! inference engine's.

use capo_plugin::prelude::*;

/// Largest log-ratio in TRL's code, nats; a token's log-ratio to the old policy is clamped to ±
/// this.
pub(super) const MOST: f64 = 20.0;
/// Smallest log-ratio of a completion or a correction, nats: `ln(1e-8)`.
pub(super) const LEAST: f64 = -18.420_680_743_952_367;

/// Level of the ratio of trainer to sampler, and treatment of a ratio outside the limits (TRL
/// `vllm_importance_sampling_mode`).
#[derive(Choice, Debug, Clone, Copy, PartialEq, Eq)]
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
#[keys]
#[derive(Debug, Clone, Copy)]
pub(super) struct Correction {
    /// Multiplies the completion's ratio by that of trainer to sampler; off when absent.
    #[key]
    vllm_importance_sampling_mode: Option<CorrectionMode>,
    /// Largest ratio of trainer to sampler that counts as it is.
    #[key(default = CLIP_MAX, above = 0)]
    vllm_importance_sampling_clip_max: f32,
    /// Smallest ratio of trainer to sampler that counts as it is; no such limit when absent.
    #[key(above = 0)]
    vllm_importance_sampling_clip_min: Option<f32>,
}

const CLIP_MAX: f32 = 3.0;

impl Correction {
    /// `[B]`, nats: logarithm of each completion's ratio.
    pub fn log_ratios(self, batch: &Batch<'_>) -> Result<Vec<f64>, PluginError> {
        let completions = batch.dims.completions as usize;
        let Some(mode) = self.vllm_importance_sampling_mode else {
            return Ok(vec![0.0; completions]);
        };
        let old_logps = batch.old_logps()?;
        let sampler_logps = batch.rollout_context()?.sampler_logps();
        let mut sums = Vec::with_capacity(completions);
        for b in 0..completions {
            let tokens = batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1);
            let ratios = tokens.map(|i| f64::from(old_logps[i]) - f64::from(sampler_logps[i]));
            sums.push(match mode {
                CorrectionMode::TokenTruncate => ratios.map(|ratio| self.truncated(ratio)).sum(),
                CorrectionMode::TokenMask => ratios.map(|ratio| self.masked(ratio)).sum(),
                CorrectionMode::SequenceTruncate => self.truncated(ratios.sum()),
                CorrectionMode::SequenceMask => self.masked(ratios.sum()),
            });
        }
        Ok(sums)
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

    /// Logarithms of the two limits.
    fn limits(self) -> (f64, f64) {
        let low = self
            .vllm_importance_sampling_clip_min
            .map_or(f64::NEG_INFINITY, |low| f64::from(low).ln());
        (low, f64::from(self.vllm_importance_sampling_clip_max).ln())
    }

    pub fn inputs(self) -> Inputs {
        match self.vllm_importance_sampling_mode {
            None => Inputs::NONE,
            Some(_) => Inputs::ROLLOUT_CONTEXT,
        }
    }

    pub fn validate(self) -> Result<(), PluginError> {
        let high = self.vllm_importance_sampling_clip_max;
        let idle_key = match self.vllm_importance_sampling_clip_min {
            Some(low) if low > high => {
                return Err(PluginError::config(format!(
                    "`vllm_importance_sampling_clip_min` is {low}, above \
                     `vllm_importance_sampling_clip_max`, {high} (lower it)"
                )));
            }
            _ if high != CLIP_MAX => "vllm_importance_sampling_clip_max",
            Some(_) => "vllm_importance_sampling_clip_min",
            None => return Ok(()),
        };
        if self.vllm_importance_sampling_mode.is_some() {
            return Ok(());
        }
        Err(PluginError::config(format!(
            "`{idle_key}` is set, but `vllm_importance_sampling_mode` is not, and nothing is \
             corrected (set it, or remove the limit)"
        )))
    }
}
