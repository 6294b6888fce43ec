//! Trust region masking: drops whole completions, or tokens, that diverge too far from the sampler.
//!
//! With r the ratio of trainer to sampler of a token, its divergence is estimated by k1 = −ln r, k2 = (ln r)² / 2 or k3 = r − 1 − ln r. A
//! completion goes where the largest (`seq_max`), the mean or the sum over its tokens exceeds `rollout_rs_threshold`; k1, which has
//! a sign, must lie between the logarithms of `rollout_rs_threshold_lower` and `rollout_rs_threshold`.
//!
//! Li et al., *Trust Region Masking for Long-Horizon LLM Reinforcement Learning*, arXiv 2512.23075 (the largest); verl,
//! `rollout_corr_helper.py`, `rollout_rs`, whose eleven names are those here, and whose preset for k3 the defaults are.

use capo_plugin::prelude::*;

use crate::policies::{self, Policies, safe};
use crate::statistic::{Estimate, Over, Statistic};
use crate::{checks, sequence, tokens};

/// Bounds on one statistic.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trm {
    /// The statistic.
    #[serde(default)]
    rollout_rs: Statistic,
    /// Largest kept.
    #[serde(default = "threshold")]
    rollout_rs_threshold: f32,
    /// Smallest ratio kept by k1.
    rollout_rs_threshold_lower: Option<f32>,
    /// Whose probabilities.
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

fn threshold() -> f32 {
    0.01
}

impl Trm {
    /// Bounds on the statistic, nats.
    fn bounds(&self) -> (f64, f64) {
        let upper = self.rollout_rs_threshold;
        let lower = self.rollout_rs_threshold_lower.unwrap_or(1.0 / upper);
        match self.rollout_rs.estimate {
            Estimate::K1 => (f64::from(lower).ln(), f64::from(upper).ln()),
            _ => (f64::NEG_INFINITY, f64::from(upper)),
        }
    }
}

impl PreBackwardMask for Trm {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let log_ratios = self.policies.compare(ctx, batch)?.log_ratios();
        let estimates: Vec<f32> =
            log_ratios.iter().map(|&log_ratio| self.rollout_rs.estimate.of(safe(log_ratio))).collect();
        let (low, high) = self.bounds();
        let inside = |value: f64| (low..=high).contains(&value);
        let reduce = match self.rollout_rs.over {
            Over::Token => {
                tokens::drop_where(keep, |i| !inside(f64::from(estimates[i])));
                return Ok(());
            }
            Over::Sum => sequence::sum,
            Over::Mean => sequence::mean,
            Over::Max => sequence::max,
        };
        for (row, value) in sequence::by_completion(batch, &estimates, reduce) {
            keep[row].iter_mut().for_each(|keep| *keep &= u8::from(inside(value)));
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE.only_if(self.rollout_rs.over == Over::Token) | MaskTraits::NO_OPTIMIZER
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::positive("rollout_rs_threshold", self.rollout_rs_threshold)?;
        let Some(lower) = self.rollout_rs_threshold_lower else { return Ok(()) };
        if self.rollout_rs.estimate != Estimate::K1 {
            let sentence = format!(
                "`rollout_rs_threshold_lower` is {lower}, but `{}` has no lower bound (leave it out)",
                self.rollout_rs
            );
            return Err(PluginError::config(sentence));
        }
        checks::positive("rollout_rs_threshold_lower", lower)?;
        checks::range(("rollout_rs_threshold_lower", lower), ("rollout_rs_threshold", self.rollout_rs_threshold))
    }
}

register!(PreBackwardMask, Trm, "masks.trm", "drops completions that diverge too far from the sampler", {
    rollout_rs = Statistic::default() => "`token`, `seq_sum`, `seq_mean` or `seq_max`, then `_k1`, `_k2` or `_k3`",
    rollout_rs_threshold = threshold() => "largest divergence kept, nats; of k1 the largest ratio"; 1e-9..100.0,
    rollout_rs_threshold_lower = None::<f32> => "smallest ratio kept, of k1 alone; one by the largest when absent",
    policies = Policies::TrainerSampler => policies::ABOUT,
});
