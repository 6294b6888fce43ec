//! Clip-Cov: drops a few random tokens among those with a high covariance of log-probability and
//! advantage.
//!
//! A candidate has a covariance between `clip_cov_lb` and `clip_cov_ub` and is not already clipped
//! by PPO's ratio (`clip_ratio_low`, `clip_ratio_high`). The number of drops is `clip_cov_ratio` of
//! all remaining tokens, at least one, drawn from the run's seed and the step.
//!
//! Cui et al., *The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models*,
//! arXiv 2505.22617; verl, `core_algos.py`, loss mode `clip_cov`.

use capo_plugin::Draws;
use capo_plugin::prelude::*;

use crate::kl_cov::covariances;
use crate::{checks, tokens};

/// Range of covariances, and the fraction of tokens to drop.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ClipCov {
    clip_cov_ratio: f64,
    clip_cov_lb: f32,
    clip_cov_ub: f32,
    clip_ratio_low: f32,
    clip_ratio_high: f32,
}

impl Default for ClipCov {
    fn default() -> Self {
        Self {
            clip_cov_ratio: 0.0002,
            clip_cov_lb: 1.0,
            clip_cov_ub: 5.0,
            clip_ratio_low: 0.2,
            clip_ratio_high: 0.2,
        }
    }
}

impl ClipCov {
    /// True if PPO's loss is the clipped term, which has no gradient.
    fn clipped(&self, log_ratio: f32, advantage: f32) -> bool {
        let ratio = log_ratio.exp();
        let inside = ratio.clamp(1.0 - self.clip_ratio_low, 1.0 + self.clip_ratio_high);
        -advantage * inside > -advantage * ratio
    }
}

impl Mask for ClipCov {
    fn mask(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let (left, old) = (tokens::left(token_mask), batch.old_logps()?);
        let inside =
            |covariance: f32| covariance > self.clip_cov_lb && covariance < self.clip_cov_ub;
        let candidates = left
            .iter()
            .zip(covariances(batch, &left))
            .filter(|(i, covariance)| {
                inside(*covariance)
                    && !self.clipped(batch.logps[**i] - old[**i], batch.advantages[**i])
            });
        let mut candidates: Vec<usize> = candidates.map(|(i, _)| *i).collect();
        Draws::new(batch.seed ^ STREAM, batch.step).shuffle(&mut candidates);
        let count = ((self.clip_cov_ratio * left.len() as f64) as usize).max(1);
        candidates
            .into_iter()
            .take(count)
            .for_each(|i| token_mask[i] = 0);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("clip_cov_ratio", self.clip_cov_ratio)?;
        checks::bound("clip_ratio_low", self.clip_ratio_low)?;
        checks::bound("clip_ratio_high", self.clip_ratio_high)?;
        checks::range(
            ("clip_cov_lb", self.clip_cov_lb),
            ("clip_cov_ub", self.clip_cov_ub),
        )
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}

/// Constant that separates this mask's draws from those of other components.
const STREAM: u64 = 0xC11F_C0F5;

register!(Mask, ClipCov, "masks.clip-cov", "drops a few tokens whose log-probability and advantage go together", {
    clip_cov_ratio = ClipCov::default().clip_cov_ratio => "share of all tokens that goes, at least one token"; 1e-5..1.0,
    clip_cov_lb = ClipCov::default().clip_cov_lb => "candidates have a larger covariance",
    clip_cov_ub = ClipCov::default().clip_cov_ub => "candidates have a smaller covariance",
    clip_ratio_low = ClipCov::default().clip_ratio_low => "PPO's lower clip: tokens that it clips are no candidates",
    clip_ratio_high = ClipCov::default().clip_ratio_high => "PPO's upper clip",
});
