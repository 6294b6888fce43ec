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

/// Drops a few tokens whose log-probability and advantage go together.
#[component(Mask, id = "masks.clip-cov")]
struct ClipCov {
    /// Share of all tokens that is dropped, at least one token.
    #[key(default = 0.0002, at_least = 0, at_most = 1, search = 1e-5..=1.0)]
    clip_cov_ratio: f64,
    /// Candidates have a larger covariance.
    #[key(default = 1.0, infinite)]
    clip_cov_lb: f32,
    /// Candidates have a smaller covariance.
    #[key(default = 5.0, infinite)]
    clip_cov_ub: f32,
    /// PPO's lower clip: tokens that it clips are not candidates.
    #[key(default = 0.2, at_least = 0, infinite)]
    clip_ratio_low: f32,
    /// PPO's upper clip.
    #[key(default = 0.2, at_least = 0, infinite)]
    clip_ratio_high: f32,
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
        let left = tokens::left(token_mask);
        let old = batch.old_logps()?;
        let mut candidates = Vec::new();
        for (&i, covariance) in left.iter().zip(covariances(batch, &left)) {
            let inside = covariance > self.clip_cov_lb && covariance < self.clip_cov_ub;
            if inside && !self.clipped(batch.logps[i] - old[i], batch.advantages[i]) {
                candidates.push(i);
            }
        }
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
        checks::ordered([
            ("clip_cov_lb", self.clip_cov_lb),
            ("clip_cov_ub", self.clip_cov_ub),
        ])
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}

/// Constant that separates this mask's draws from those of other components.
const STREAM: u64 = 0xC11F_C0F5;
