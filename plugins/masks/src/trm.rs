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

use crate::policies::{self, Policies, safe};
use crate::rated::{self, Bounded, Rated};
use crate::statistic::{Estimate, Over, Statistic};
use crate::{checks, sequence, tokens};

/// Bounds on one statistic.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trm {
    #[serde(default)]
    rollout_rs: Statistic,
    rollout_rs_threshold: Option<f32>,
    target_rejection_rate: Option<f64>,
    rollout_rs_threshold_lower: Option<f32>,
    #[serde(default = "Policies::trainer_sampler")]
    policies: Policies,
}

const THRESHOLD: f32 = 0.01;

impl Trm {
    fn threshold(&self) -> f64 {
        f64::from(self.rollout_rs_threshold.unwrap_or(THRESHOLD))
    }

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
    fn given(&self) -> (Option<f64>, Option<&'static str>) {
        (
            self.target_rejection_rate,
            self.rollout_rs_threshold.map(|_| "rollout_rs_threshold"),
        )
    }

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
        if self.rollout_rs.estimate == Estimate::K1 {
            self.threshold().ln()
        } else {
            self.threshold()
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

    fn validate(&self) -> Result<(), PluginError> {
        checks::positive("rollout_rs_threshold", self.threshold() as f32)?;
        let Some(lower) = self.rollout_rs_threshold_lower else {
            if self.rollout_rs.estimate == Estimate::K1
                && self.target_rejection_rate.is_none()
                && self.threshold() <= 1.0
            {
                let sentence = format!(
                    "`rollout_rs_threshold` is {}, but of `{}` it is the largest ratio, and every token would be dropped (set it above 1, such as 1.001, or give `rollout_rs_threshold_lower` too)",
                    self.rollout_rs_threshold.unwrap_or(THRESHOLD),
                    self.rollout_rs.name
                );
                return Err(PluginError::config(sentence));
            }
            return Ok(());
        };
        if self.rollout_rs.estimate != Estimate::K1 {
            let sentence = format!(
                "`rollout_rs_threshold_lower` is {lower}, but `{}` has no lower bound (leave it out)",
                self.rollout_rs.name
            );
            return Err(PluginError::config(sentence));
        }
        checks::positive("rollout_rs_threshold_lower", lower)?;
        checks::range(
            ("rollout_rs_threshold_lower", lower),
            ("rollout_rs_threshold", self.threshold() as f32),
        )
    }
}

register!(Mask, Rated<Trm>, "masks.trm", "drops completions that diverge too far from the sampler", {
    rollout_rs = "seq_mean_k3" => "`token`, `seq_sum`, `seq_mean` or `seq_max`, then `_k1`, `_k2` or `_k3`",
    rollout_rs_threshold = THRESHOLD => "largest divergence kept, nats; of k1 the largest ratio"; 1e-9..100.0,
    rollout_rs_threshold_lower = None::<f32> => "smallest ratio kept, of k1 alone; one by the largest when absent",
    target_rejection_rate = None::<f64> => rated::ABOUT,
    policies = Policies::TrainerSampler => policies::ABOUT,
});
