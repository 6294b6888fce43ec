//! Trust region masking: drops whole completions, or tokens, that diverge too far from the sampler.
//!
//! r is a token's ratio of trainer to sampler. Its divergence is estimated by k1 = −ln r, k2 = (ln
//! r)² / 2 or k3 = r − 1 − ln r. A completion is dropped if the maximum (`seq_max`), the mean or
//! the sum over its tokens exceeds `rollout_rs_threshold`. k1 is signed, so it must lie between the
//! logarithms of `rollout_rs_threshold_lower` and `rollout_rs_threshold`.
//!
//! Li et al., *Trust Region Masking for Long-Horizon LLM Reinforcement Learning*, arXiv 2512.23075
//! (the maximum); verl, `rollout_corr_helper.py`, `rollout_rs`, whose eleven names are used here.
//! The defaults are verl's preset for k3.

use capo_plugin::prelude::*;

use crate::policies::{Policies, safe};
use crate::rated::{Bounded, Rated};
use crate::statistic::{Estimate, Over, Statistic};
use crate::{checks, sequence, tokens};

/// Drops completions that diverge too far from the sampler.
#[component(Mask, id = "masks.trm", within = Rated)]
struct Trm {
    #[key(default = Statistic::default())]
    rollout_rs: Statistic,
    /// Largest divergence that is kept, nats; of k1 the largest ratio.
    #[key(default = 0.01, above = 0, search = 1e-9..=100.0, not_with = "target_rejection_rate")]
    rollout_rs_threshold: f32,
    /// Smallest ratio that is kept, of k1 alone; when absent the largest divergence bounds both
    /// sides.
    #[key(above = 0)]
    rollout_rs_threshold_lower: Option<f32>,
    #[key(default = Policies::TrainerSampler)]
    policies: Policies,
}

impl Trm {
    /// Bounded size of a statistic, nats. For the signed k1: its absolute value, or the value
    /// itself if a lower bound exists.
    fn size(&self, value: f64) -> f64 {
        match (self.rollout_rs.estimate, self.rollout_rs_threshold_lower) {
            _ if value.is_nan() => f64::INFINITY,
            (Estimate::K1, None) => value.abs(),
            (Estimate::K1, Some(lower)) if value < f64::from(lower).ln() => f64::INFINITY,
            _ => value,
        }
    }
}

impl Bounded for Trm {
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError> {
        let log_ratios = self.policies.compare(batch)?.log_ratios();
        let estimates: Vec<f32> = log_ratios
            .iter()
            .map(|&log_ratio| self.rollout_rs.estimate.of(safe(log_ratio)))
            .collect();
        let mut sizes: Vec<f64> = estimates
            .iter()
            .map(|&estimate| self.size(f64::from(estimate)))
            .collect();
        let reduce = match self.rollout_rs.over {
            Over::Token => return Ok(sizes),
            Over::Sum => sequence::sum,
            Over::Mean => sequence::mean,
            Over::Max => sequence::max,
        };
        for (row, value) in sequence::by_completion(batch, &estimates, reduce) {
            sizes[row].fill(self.size(value));
        }
        Ok(sizes)
    }

    fn limit(&self, _: f32) -> f64 {
        let threshold = f64::from(self.rollout_rs_threshold);
        if self.rollout_rs.estimate == Estimate::K1 {
            threshold.ln()
        } else {
            threshold
        }
    }

    fn as_key(&self, limit: f64) -> f64 {
        if self.rollout_rs.estimate == Estimate::K1 {
            limit.exp()
        } else {
            limit
        }
    }

    fn inputs(&self) -> Inputs {
        self.policies.inputs()
    }

    fn traits(&self) -> Traits {
        tokens::ALONE.only_if(self.rollout_rs.over == Over::Token) | Traits::NO_OPTIMIZER
    }

    fn validate(&self, follows_run: bool) -> Result<(), PluginError> {
        let name = &self.rollout_rs.name;
        let threshold = self.rollout_rs_threshold;
        let is_ratio = self.rollout_rs.estimate == Estimate::K1;
        match self.rollout_rs_threshold_lower {
            None if is_ratio && !follows_run && threshold <= 1.0 => {
                Err(PluginError::config(format!(
                    "`rollout_rs_threshold` is {threshold}, but of `{name}` it is the largest \
                     ratio, and every token would be dropped (set it above 1, such as 1.001, or \
                     give `rollout_rs_threshold_lower` too)"
                )))
            }
            Some(lower) if !is_ratio => Err(PluginError::config(format!(
                "`rollout_rs_threshold_lower` is {lower}, but `{name}` has no lower bound (leave \
                 it out)"
            ))),
            Some(lower) => checks::ordered([
                ("rollout_rs_threshold_lower", lower),
                ("rollout_rs_threshold", threshold),
            ]),
            None => Ok(()),
        }
    }
}
